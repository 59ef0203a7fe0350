#include "asymkv/gate/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/run_writer.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProbe = "probe.json";

// One shard as it lies on disk, checked against itself.
struct ShardFolder {
  fs::path folder;
  run_files::Header header;
  std::vector<int64_t> units;                   // indices in the whole run's plan
  std::vector<std::vector<std::string>> lines;  // [unit][arm]
  AdmissionRecord record;
  ProbeResult probe;
  std::string scales;  // bytes of scales.json; empty without fixed scales
};

run_files::Header read_header(const fs::path& folder) {
  const fs::path path = folder / run_files::kRun;
  run_files::Header header = run_files::header_from_json(read_json_file(path), path.string());
  if (header.shard.is_whole()) throw_bad_input("{} is a whole run, no shard of one", folder.string());
  return header;
}

std::vector<Unit> plan_of(const run_files::Header& header, const Protocol& protocol, const std::vector<Case>& cases) {
  std::vector<ArmId> asked = header.arms;
  std::erase(asked, ArmId::kN2);
  return plan_units(protocol, cases, asked);
}

// Everything but the answers has to be the first shard's.
void check_alike(const ShardFolder& first, const ShardFolder& other) {
  const auto described = [](const ShardFolder& shard) {
    run_files::Header header = shard.header;
    header.shard.index = 1;
    return run_files::header_to_json(header);
  };
  const auto differences = json_differences(described(first), described(other));
  if (!differences.empty()) {
    const Mismatch& found = differences.front();
    throw_bad_input("{} is of another run than {}: \"{}\" is {} there and {} here", other.folder.string(),
                    first.folder.string(), found.path, found.recorded, found.recomputed);
  }
  if (first.scales != other.scales) {
    throw_bad_input("{} and {} have different {}", first.folder.string(), other.folder.string(), run_files::kScales);
  }
  if (first.probe.verdict == other.probe.verdict) return;
  throw_bad_input("the probes of {} and {} disagree: {} and {}", first.folder.string(), other.folder.string(),
                  fragility_name(first.probe.verdict), fragility_name(other.probe.verdict));
}

ShardFolder read_shard(const fs::path& folder, const ShardFolder* first) {
  ShardFolder shard;
  shard.folder = folder;
  shard.header = read_header(folder);
  const fs::path protocol_path = folder / run_files::kProtocol;
  run_files::check_hash(protocol_path, shard.header.protocol_sha256);
  run_files::check_hash(folder / run_files::kCases, shard.header.cases_sha256);
  const fs::path probe = folder / kProbe, scales = folder / run_files::kScales;
  if (!fs::exists(probe)) throw_bad_input("{} is missing: resume the shard", probe.string());
  shard.probe = probe_from_json(read_json_file(probe), probe.string());
  if (fs::exists(scales)) shard.scales = read_text_file(scales);
  if (first != nullptr) check_alike(*first, shard);

  const Protocol protocol = protocol_from_json(read_json_file(protocol_path), protocol_path.string());
  const std::vector<Unit> plan =
      plan_shard(plan_of(shard.header, protocol, read_cases(folder / run_files::kCases)), shard.header.shard);
  const fs::path progress = folder / run_files::kProgress;
  const auto commits = run_files::parse_commits(run_files::progress_lines(progress), progress, plan);
  if (commits.size() != plan.size()) {
    throw_bad_input("{} (shard {}) has finished {} of {} units: resume it", folder.string(),
                    shard_name(shard.header.shard), commits.size(), plan.size());
  }
  shard.lines = run_files::read_commits(folder, shard.header.arms, commits);
  for (const Unit& unit : plan) shard.units.push_back(unit.index);
  shard.record = read_admission_record(folder);
  return shard;
}

// Every index once.
void check_indices(const std::vector<ShardFolder>& shards) {
  const int64_t count = shards.front().header.shard.count;
  std::map<int64_t, const ShardFolder*> found;
  for (const ShardFolder& shard : shards) {
    const auto [place, fresh] = found.try_emplace(shard.header.shard.index, &shard);
    if (fresh) continue;
    throw_bad_input("{} and {} are both shard {}", place->second->folder.string(), shard.folder.string(),
                    shard_name(shard.header.shard));
  }
  for (int64_t index = 1; index <= count; ++index) {
    if (!found.contains(index)) throw_bad_input("shard {}/{} is missing: name its folder too", index, count);
  }
}

void write_run(const fs::path& out, const std::vector<ShardFolder>& shards) {
  const ShardFolder& first = shards.front();
  RunRequest request;
  request.folder = out;
  request.lock = std::make_shared<FolderLock>(out, false);
  const fs::path protocol = first.folder / run_files::kProtocol;
  request.protocol = protocol_from_json(read_json_file(protocol), protocol.string());
  request.cases = read_cases(first.folder / run_files::kCases);
  request.identity = first.header.identity;
  request.mode = first.header.mode;
  request.cache = first.header.cache;
  const std::vector<Unit> plan = plan_of(first.header, request.protocol, request.cases);
  std::map<int64_t, const std::vector<std::string>*> lines;
  for (const ShardFolder& shard : shards) {
    for (size_t i = 0; i < shard.units.size(); ++i) lines[shard.units[i]] = &shard.lines[i];
  }
  RunWriter writer(request, plan, first.header.arms);
  for (const Unit& unit : plan) writer.commit(unit, *lines.at(unit.index));
}

}  // namespace

void write_shard_probe(const fs::path& folder, const ProbeResult& probe) {
  write_file_atomic(folder / kProbe, canonical_json(probe_to_json(probe)) + "\n");
}

FinishedRun merge_shards(const fs::path& out, const std::vector<fs::path>& folders) {
  if (folders.empty()) throw_usage("no shard to merge: name their folders");
  std::vector<ShardFolder> shards;
  for (const fs::path& folder : folders) {
    shards.push_back(read_shard(folder, shards.empty() ? nullptr : &shards.front()));
  }
  check_indices(shards);
  std::ranges::sort(shards, {}, [](const ShardFolder& shard) { return shard.header.shard.index; });
  AdmissionRecord record = shards.front().record;
  for (size_t i = 1; i < shards.size(); ++i) {
    record.add(shards[i].record, (shards[i].folder / run_files::kRecord).string());
  }
  write_run(out, shards);
  if (!shards.front().scales.empty()) write_file_atomic(out / run_files::kScales, shards.front().scales);
  write_file_atomic(out / run_files::kRecord, admission_record_bytes(record));
  return finish_run(read_run(out), shards.front().probe, std::move(record));
}

}  // namespace asymkv
