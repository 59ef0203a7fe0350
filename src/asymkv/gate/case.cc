#include "asymkv/gate/case.h"

#include <array>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/gate/jsonl_reader.h"

namespace asymkv {
namespace {

void check_case(const Case& value, const JsonFields& fields) {
  if (value.id.empty()) fields.fail("id", "is empty");
  if (value.panel.empty()) fields.fail("panel", "is empty");
  if (value.context.empty()) fields.fail("context", "is empty");
  if (value.user_bytes) {
    if (value.kind != PanelKind::kMath) fields.fail("user_bytes", "is for math cases by chat alone");
    if (*value.user_bytes < 1 || *value.user_bytes > std::ssize(value.question)) {
      fields.fail("user_bytes", "must lie between 1 and the bytes of the question");
    }
  }
  if (value.kind == PanelKind::kLoss) {
    if (!value.question.empty()) fields.fail("question", "must be empty in a loss case");
    if (!value.expected.empty()) fields.fail("expected", "must be empty in a loss case");
    if (value.scored_tokens < 1) fields.fail("scored_tokens", "must be at least 1 in a loss case");
    // The first token has nothing before it that could predict it.
    if (value.length <= value.scored_tokens) fields.fail("length", "must be larger than scored_tokens");
    return;
  }
  if (value.expected.empty()) fields.fail("expected", "is empty");
  if (value.scored_tokens != 0) fields.fail("scored_tokens", "must be 0 outside loss cases");
  if (value.length < 0) fields.fail("length", "is negative");
  if (!(value.depth >= 0.0 && value.depth <= 1.0)) fields.fail("depth", "must lie between 0 and 1");
}

}  // namespace

std::string_view panel_kind_name(PanelKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"retrieval", "math", "loss"};
  return kNames[static_cast<size_t>(kind)];
}

PanelKind parse_panel_kind(std::string_view name, std::string_view origin) {
  for (const PanelKind kind : {PanelKind::kRetrieval, PanelKind::kMath, PanelKind::kLoss}) {
    if (panel_kind_name(kind) == name) return kind;
  }
  throw_bad_input("{}: unknown panel kind \"{}\"; known: retrieval math loss", origin, name);
}

Json case_to_json(const Case& value) {
  Json json = {{"id", value.id},           {"panel", value.panel},       {"kind", panel_kind_name(value.kind)},
               {"context", value.context}, {"question", value.question}, {"expected", value.expected},
               {"depth", value.depth},     {"length", value.length},     {"scored_tokens", value.scored_tokens}};
  if (value.user_bytes) json["user_bytes"] = *value.user_bytes;
  return json;
}

Case case_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  Case value;
  value.id = fields.text("id");
  value.panel = fields.text("panel");
  value.kind = parse_panel_kind(fields.text("kind"), origin);
  value.context = fields.text("context");
  value.question = fields.text("question");
  value.expected = fields.text("expected");
  value.depth = fields.number("depth");
  value.length = fields.integer("length");
  value.scored_tokens = fields.integer("scored_tokens");
  if (fields.has("user_bytes")) value.user_bytes = fields.integer("user_bytes");
  fields.finish();
  check_case(value, fields);
  return value;
}

std::string cases_to_jsonl(std::span<const Case> cases) {
  std::string text;
  for (const Case& value : cases) text += canonical_json(case_to_json(value)) + '\n';
  return text;
}

std::vector<Case> read_cases(const std::filesystem::path& path) {
  std::vector<Case> cases;
  std::set<std::string> ids;
  read_jsonl(path, [&](const Json& json, const std::string& origin) {
    cases.push_back(case_from_json(json, origin));
    if (!ids.insert(cases.back().id).second) throw_bad_input("{}: case {} is repeated", origin, cases.back().id);
  });
  if (cases.empty()) throw_bad_input("{} holds no case", path.string());
  return cases;
}

}  // namespace asymkv
