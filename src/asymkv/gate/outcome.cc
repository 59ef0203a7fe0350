#include "asymkv/gate/outcome.h"

#include <cmath>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/gate/jsonl_reader.h"

namespace asymkv {
namespace {

ArmId arm_field(JsonFields& fields) {
  const std::string name = fields.text("arm");
  try {
    return parse_arm(name);
  } catch (const Error& e) {
    fields.fail("arm", e.what());
  }
}

void check_outcome(const Outcome& value, const JsonFields& fields) {
  if (value.case_id.empty()) fields.fail("case_id", "is empty");
  if (value.panel.empty()) fields.fail("panel", "is empty");
  if (value.failed == value.failure.empty()) fields.fail("failure", "must be given exactly where failed is true");
  if (value.failed && (value.correct || value.alt_correct)) fields.fail("correct", "is true in a failed case");
  if (value.correct && value.parsed.empty()) fields.fail("correct", "is true without a parsed answer");
  if (value.alt_correct && value.alt_parsed.empty()) fields.fail("alt_correct", "is true without a parsed answer");
  if (value.tokens < 0) fields.fail("tokens", "is negative");
  if (value.scored_tokens < 0) fields.fail("scored_tokens", "is negative");
  if (!std::isfinite(value.nll) || value.nll < 0.0) fields.fail("nll", "must be finite and not negative");
  if (value.nll > 0.0 && value.scored_tokens == 0) fields.fail("nll", "is given without scored tokens");
}

}  // namespace

Json outcome_to_json(const Outcome& value) {
  return {{"case_id", value.case_id},
          {"panel", value.panel},
          {"arm", arm_name(value.arm)},
          {"text", value.text},
          {"parsed", value.parsed},
          {"correct", value.correct},
          {"alt_parsed", value.alt_parsed},
          {"alt_correct", value.alt_correct},
          {"failed", value.failed},
          {"failure", value.failure},
          {"tokens", value.tokens},
          {"truncated", value.truncated},
          {"nll", value.nll},
          {"scored_tokens", value.scored_tokens}};
}

Outcome outcome_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  Outcome value;
  value.case_id = fields.text("case_id");
  value.panel = fields.text("panel");
  value.arm = arm_field(fields);
  value.text = fields.text("text");
  value.parsed = fields.text("parsed");
  value.correct = fields.boolean("correct");
  value.alt_parsed = fields.text("alt_parsed");
  value.alt_correct = fields.boolean("alt_correct");
  value.failed = fields.boolean("failed");
  value.failure = fields.text("failure");
  value.tokens = fields.integer("tokens");
  value.truncated = fields.boolean("truncated");
  value.nll = fields.number("nll");
  value.scored_tokens = fields.integer("scored_tokens");
  fields.finish();
  check_outcome(value, fields);
  return value;
}

std::vector<Outcome> read_outcomes(const std::filesystem::path& path, ArmId arm) {
  std::vector<Outcome> outcomes;
  std::set<std::string> ids;
  read_jsonl(path, [&](const Json& json, const std::string& origin) {
    outcomes.push_back(outcome_from_json(json, origin));
    const Outcome& last = outcomes.back();
    if (last.arm != arm) {
      throw_bad_input("{}: the line belongs to arm {}, but the file to {}", origin, arm_name(last.arm), arm_name(arm));
    }
    if (!ids.insert(last.case_id).second) throw_bad_input("{}: case {} is repeated", origin, last.case_id);
  });
  return outcomes;
}

}  // namespace asymkv
