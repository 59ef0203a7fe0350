#include "asymkv/gate/run_files.h"

#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/json_fields.h"

namespace asymkv::run_files {
namespace {

constexpr std::string_view kSchema = "asymkv.run/2";
constexpr std::string_view kFirstSchema = "asymkv.run/1";

RunIdentity identity_from(JsonFields fields) {
  RunIdentity identity;
  identity.model = fields.text("model");
  identity.model_sha256 = fields.text("model_sha256");
  identity.config_sha256 = fields.text("config_sha256");
  identity.tokenizer_sha256 = fields.text("tokenizer_sha256");
  identity.build = fields.text("build");
  identity.worker = fields.text("worker");
  identity.native_dtype = fields.text("native_dtype");
  identity.scales_sha256 = fields.text("scales_sha256");
  fields.finish();
  return identity;
}

int64_t positive(JsonFields& fields, const std::string& field) {
  const int64_t value = fields.integer(field);
  if (value < 1) fields.fail(field, fmt::format("is {}, below 1", value));
  return value;
}

CacheShape cache_from(JsonFields fields) {
  CacheShape cache;
  cache.num_layers = positive(fields, "num_layers");
  cache.layer.num_kv_heads = positive(fields, "num_kv_heads");
  cache.layer.k_head_dim = positive(fields, "k_head_dim");
  cache.layer.v_head_dim = positive(fields, "v_head_dim");
  cache.layer.page_size = positive(fields, "page_size");
  fields.finish();
  return cache;
}

Shard shard_from(JsonFields fields) {
  const Shard shard{positive(fields, "index"), positive(fields, "count")};
  if (shard.index > shard.count) fields.fail("index", "is above count");
  fields.finish();
  return shard;
}

std::vector<ArmId> arms_from(JsonFields& fields) {
  std::vector<ArmId> arms;
  for (const std::string& name : fields.texts("arms")) arms.push_back(fields.parsed("arms", name, parse_arm));
  if (arms.empty() || arms.front() != ArmId::kN) fields.fail("arms", "must begin with N");
  if (std::set<ArmId>(arms.begin(), arms.end()).size() != arms.size()) fields.fail("arms", "names an arm twice");
  return arms;
}

}  // namespace

std::filesystem::path outcomes_path(const std::filesystem::path& folder, ArmId arm) {
  return folder / kOutcomes / fmt::format("{}.jsonl", arm_name(arm));
}

Json header_to_json(const Header& header) {
  Json arms = Json::array();
  for (const ArmId arm : header.arms) arms.push_back(arm_name(arm));
  const RunIdentity& id = header.identity;
  Json json = {{"schema", kSchema},
               {"arms", std::move(arms)},
               {"protocol_sha256", header.protocol_sha256},
               {"cases_sha256", header.cases_sha256},
               {"policy_mode", policy_mode_name(header.mode)},
               {"cache",
                {{"num_layers", header.cache.num_layers},
                 {"num_kv_heads", header.cache.layer.num_kv_heads},
                 {"k_head_dim", header.cache.layer.k_head_dim},
                 {"v_head_dim", header.cache.layer.v_head_dim},
                 {"page_size", header.cache.layer.page_size}}},
               {"identity",
                {{"model", id.model},
                 {"model_sha256", id.model_sha256},
                 {"config_sha256", id.config_sha256},
                 {"tokenizer_sha256", id.tokenizer_sha256},
                 {"build", id.build},
                 {"worker", id.worker},
                 {"native_dtype", id.native_dtype},
                 {"scales_sha256", id.scales_sha256}}}};
  if (!header.shard.is_whole()) json["shard"] = {{"index", header.shard.index}, {"count", header.shard.count}};
  return json;
}

Header header_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  const std::string schema = fields.text("schema");
  if (schema == kFirstSchema) {
    fields.fail("schema", fmt::format("is \"{}\": a run of an earlier version, without the policy mode and the cache "
                                      "shape that a check needs; admit the model again into an empty folder",
                                      schema));
  }
  if (schema != kSchema) fields.fail("schema", fmt::format("must be \"{}\"", kSchema));
  Header header;
  header.arms = arms_from(fields);
  header.protocol_sha256 = fields.text("protocol_sha256");
  header.cases_sha256 = fields.text("cases_sha256");
  header.mode = fields.parsed("policy_mode", fields.text("policy_mode"), parse_policy_mode);
  header.cache = cache_from(fields.object("cache"));
  header.identity = identity_from(fields.object("identity"));
  if (fields.has("shard")) header.shard = shard_from(fields.object("shard"));
  fields.finish();
  return header;
}

Json commit_to_json(const Commit& commit) {
  return {{"unit", commit.unit},
          {"panel", commit.panel},
          {"cases", commit.cases},
          {"end_bytes", commit.end_bytes},
          {"sha256", commit.sha256}};
}

Commit commit_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  Commit commit;
  commit.unit = fields.integer("unit");
  commit.panel = fields.text("panel");
  commit.cases = fields.integer("cases");
  commit.sha256 = fields.text("sha256");
  const Json& ends = fields.raw("end_bytes");
  if (!ends.is_object()) fields.fail("end_bytes", "must be an object of integers");
  for (const auto& [arm, end] : ends.items()) {
    if (!end.is_number_unsigned() || end.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fields.fail("end_bytes", fmt::format("must hold integers from 0 to {}, found {}", INT64_MAX, end.dump()));
    }
    commit.end_bytes[arm] = end.get<int64_t>();
  }
  fields.finish();
  return commit;
}

void check_hash(const std::filesystem::path& path, const std::string& expected) {
  const std::string found = sha256_file_hex(path);
  if (found == expected) return;
  throw_bad_input("{} has SHA-256 {}, but run.json names {}: it was changed after the run began", path.string(), found,
                  expected);
}

std::vector<std::string> progress_lines(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (begin != text.size()) throw_bad_input("{}: the last line is torn: resume the run", path.string());
  return lines;
}

std::vector<Commit> parse_commits(const std::vector<std::string>& lines, const std::filesystem::path& path,
                                  const std::vector<Unit>& plan) {
  std::vector<Commit> commits;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string origin = fmt::format("{}:{}", path.string(), i + 1);
    Commit commit = commit_from_json(parse_json(lines[i], origin), origin);
    if (i >= plan.size()) throw_bad_input("{}: the run has only {} units", origin, plan.size());
    const Unit& unit = plan[i];
    if (commit.unit != unit.index || commit.panel != unit.panel || commit.cases != std::ssize(unit.cases)) {
      throw_bad_input("{}: unit {} of {} with {} cases, but the plan has unit {} of {} with {} cases", origin,
                      commit.unit, commit.panel, commit.cases, unit.index, unit.panel, unit.cases.size());
    }
    for (const ArmSlot& slot : unit.slots) {
      const std::string arm(arm_name(slot.arm));
      if (!commit.end_bytes.contains(arm)) throw_bad_input("{}: field \"end_bytes\" lacks arm {}", origin, arm);
      if (!commits.empty() && commit.end_bytes.at(arm) < commits.back().end_bytes.at(arm)) {
        throw_bad_input("{}: the outcomes of arm {} shrink", origin, arm);
      }
    }
    if (commit.end_bytes.size() != unit.slots.size()) throw_bad_input("{}: names an arm that did not run", origin);
    commits.push_back(std::move(commit));
  }
  return commits;
}

std::vector<std::vector<std::string>> read_commits(const std::filesystem::path& folder, const std::vector<ArmId>& arms,
                                                   const std::vector<Commit>& commits) {
  if (commits.empty()) return {};
  std::vector<std::string> texts;
  for (const ArmId arm : arms) {
    const auto path = outcomes_path(folder, arm);
    texts.push_back(read_text_file(path));
    const int64_t end = commits.back().end_bytes.at(std::string(arm_name(arm)));
    if (std::ssize(texts.back()) < end) {
      throw_bad_input(
          "{} has {} bytes, but {} were committed: finished outcomes were lost, so run again into an empty "
          "folder",
          path.string(), texts.back().size(), end);
    }
  }
  std::vector<size_t> begins(arms.size(), 0);
  std::vector<std::vector<std::string>> units;
  for (const Commit& commit : commits) {
    Sha256 hash;
    std::vector<std::string>& lines = units.emplace_back();
    for (size_t i = 0; i < arms.size(); ++i) {
      const auto end = static_cast<size_t>(commit.end_bytes.at(std::string(arm_name(arms[i]))));
      lines.push_back(texts[i].substr(begins[i], end - begins[i]));
      hash.update(std::string_view(lines.back()));
      begins[i] = end;
    }
    if (hash.hex_digest() != commit.sha256) {
      throw_bad_input("{}: the outcomes of unit {} ({}) were changed after they were written", folder.string(),
                      commit.unit, commit.panel);
    }
  }
  return units;
}

}  // namespace asymkv::run_files
