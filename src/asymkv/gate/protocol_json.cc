#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/gate/protocol.h"

namespace asymkv {
namespace {

Json generation_to_json(const GenerationLimits& limits) {
  return {{"token_limit", limits.token_limit}, {"stops", limits.stops}};
}

GenerationLimits generation_from(JsonFields fields) {
  GenerationLimits limits{fields.integer("token_limit"), fields.texts("stops")};
  fields.finish();
  return limits;
}

// Reads one of the named words of an enum; the error lists them.
template <typename Enum, typename Name>
Enum word(JsonFields& fields, const std::string& field, std::initializer_list<Enum> values, Name name) {
  const std::string text = fields.text(field);
  std::string known;
  for (const Enum value : values) {
    if (name(value) == text) return value;
    known += fmt::format(" {}", name(value));
  }
  fields.fail(field, fmt::format("is \"{}\"; known:{}", text, known));
}

DataSource source_from(JsonFields& fields) {
  return word(fields, "source", {DataSource::kBuiltin, DataSource::kGeneric, DataSource::kFile}, data_source_name);
}

Json retrieval_to_json(const RetrievalPanel& panel) {
  return {{"length", panel.length},
          {"count", panel.count},
          {"depths", panel.depths},
          {"distractors", panel.distractors},
          {"digits", panel.digits},
          {"limit", panel.limit},
          {"native_floor", panel.native_floor},
          {"source", data_source_name(panel.source)},
          {"data_sha256", panel.data_sha256},
          {"generation", generation_to_json(panel.generation)},
          {"cases_per_unit", panel.cases_per_unit}};
}

RetrievalPanel retrieval_from(JsonFields fields) {
  RetrievalPanel panel;
  panel.length = fields.integer("length");
  panel.count = fields.integer("count");
  panel.depths = fields.integer("depths");
  panel.distractors = fields.integer("distractors");
  panel.digits = fields.integer("digits");
  panel.limit = fields.number("limit");
  panel.native_floor = fields.number("native_floor");
  panel.source = source_from(fields);
  panel.data_sha256 = fields.texts("data_sha256");
  panel.generation = generation_from(fields.object("generation"));
  panel.cases_per_unit = fields.integer("cases_per_unit");
  fields.finish();
  return panel;
}

// "prompt" is written where it is chat alone, so that older protocols keep their hash.
Json math_to_json(const MathPanel& panel) {
  Json json = {{"source", data_source_name(panel.source)},
               {"data_sha256", panel.data_sha256},
               {"count", panel.count},
               {"few_shot", panel.few_shot},
               {"parser", answer_parser_name(panel.parser)},
               {"native_floor", panel.native_floor},
               {"generation", generation_to_json(panel.generation)},
               {"cases_per_unit", panel.cases_per_unit}};
  if (panel.prompt == MathPrompt::kChat) json["prompt"] = math_prompt_name(panel.prompt);
  return json;
}

MathPanel math_from(JsonFields fields) {
  MathPanel panel;
  panel.source = source_from(fields);
  panel.data_sha256 = fields.texts("data_sha256");
  panel.count = fields.integer("count");
  panel.few_shot = fields.integer("few_shot");
  if (fields.has("prompt")) {
    panel.prompt = word(fields, "prompt", {MathPrompt::kFewShot, MathPrompt::kChat}, math_prompt_name);
  }
  panel.parser = word(fields, "parser", {AnswerParser::kStrict, AnswerParser::kFlexible}, answer_parser_name);
  panel.native_floor = fields.number("native_floor");
  panel.generation = generation_from(fields.object("generation"));
  panel.cases_per_unit = fields.integer("cases_per_unit");
  fields.finish();
  return panel;
}

Json loss_to_json(const LossPanel& panel) {
  return {{"documents", panel.documents},         {"document_tokens", panel.document_tokens},
          {"scored_tokens", panel.scored_tokens}, {"source", data_source_name(panel.source)},
          {"data_sha256", panel.data_sha256},     {"cases_per_unit", panel.cases_per_unit}};
}

LossPanel loss_from(JsonFields fields) {
  LossPanel panel;
  panel.documents = fields.integer("documents");
  panel.document_tokens = fields.integer("document_tokens");
  panel.scored_tokens = fields.integer("scored_tokens");
  panel.source = source_from(fields);
  panel.data_sha256 = fields.texts("data_sha256");
  panel.cases_per_unit = fields.integer("cases_per_unit");
  fields.finish();
  return panel;
}

Json panels_to_json(const Protocol& protocol) {
  Json retrieval = Json::array(), loss = Json::array();
  for (const RetrievalPanel& panel : protocol.retrieval) retrieval.push_back(retrieval_to_json(panel));
  for (const LossPanel& panel : protocol.loss) loss.push_back(loss_to_json(panel));
  Json panels = {{"retrieval", std::move(retrieval)}, {"loss", std::move(loss)}};
  if (protocol.math) panels["math"] = math_to_json(*protocol.math);
  return panels;
}

void panels_from(JsonFields fields, Protocol& protocol) {
  for (JsonFields& panel : fields.objects("retrieval")) protocol.retrieval.push_back(retrieval_from(std::move(panel)));
  if (fields.has("math")) protocol.math = math_from(fields.object("math"));
  for (JsonFields& panel : fields.objects("loss")) protocol.loss.push_back(loss_from(std::move(panel)));
  fields.finish();
}

Margins margins_from(JsonFields fields) {
  const Margins margins{fields.number("preservation_limit"), fields.number("aggregate_margin"),
                        fields.number("loss_limit")};
  fields.finish();
  return margins;
}

uint64_t seed_from(JsonFields& fields, const std::string& field) {
  const int64_t seed = fields.integer(field);
  if (seed < 0) fields.fail(field, "is negative");
  return static_cast<uint64_t>(seed);
}

void bootstrap_from(JsonFields fields, Protocol& protocol) {
  protocol.bootstrap_resamples = fields.integer("resamples");
  protocol.bootstrap_seed = seed_from(fields, "seed");
  fields.finish();
}

void path_from(JsonFields& fields, Protocol& protocol) {
  protocol.path = word(fields, "path", {RunPath::kWorker, RunPath::kReference}, run_path_name);
  protocol.prefill = word(fields, "prefill", {Prefill::kShared, Prefill::kPerArm}, prefill_name);
  protocol.chunk_tokens = fields.integer("chunk_tokens");
  protocol.noise_floor = fields.boolean("noise_floor");
}

Json arms_to_json(const std::vector<ArmId>& arms) {
  Json json = Json::array();
  for (const ArmId arm : arms) json.push_back(arm_name(arm));
  return json;
}

std::vector<ArmId> arms_from(JsonFields& fields, const std::string& field) {
  std::vector<ArmId> arms;
  for (const std::string& name : fields.texts(field)) arms.push_back(fields.parsed(field, name, parse_arm));
  return arms;
}

Looks looks_from(JsonFields fields) {
  Looks looks;
  looks.fractions.clear();
  const Json& fractions = fields.raw("fractions");
  if (!fractions.is_array()) fields.fail("fractions", "must be an array of numbers");
  for (const Json& fraction : fractions) {
    if (!fraction.is_number()) fields.fail("fractions", fmt::format("must hold numbers, found {}", fraction.dump()));
    looks.fractions.push_back(fraction.get<double>());
  }
  looks.spending = fields.parsed("spending", fields.text("spending"), stats::parse_spending);
  fields.finish();
  return looks;
}

constexpr std::string_view kSchema = "asymkv.protocol/1";

}  // namespace

Json protocol_to_json(const Protocol& p) {
  Json json = {{"schema", kSchema},
               {"name", p.name},
               {"class", protocol_class_name(p.protocol_class)},
               {"objective", objective_name(p.objective)},
               {"margins",
                {{"preservation_limit", p.margins.preservation_limit},
                 {"aggregate_margin", p.margins.aggregate_margin},
                 {"loss_limit", p.margins.loss_limit}}},
               {"alpha", p.alpha},
               {"divisor", p.divisor},
               {"panels", panels_to_json(p)},
               {"seed", p.seed},
               {"bootstrap", {{"resamples", p.bootstrap_resamples}, {"seed", p.bootstrap_seed}}},
               {"path", run_path_name(p.path)},
               {"prefill", prefill_name(p.prefill)},
               {"chunk_tokens", p.chunk_tokens},
               {"noise_floor", p.noise_floor},
               {"default_arms", arms_to_json(p.default_arms)}};
  // Left out where it says nothing: a protocol without it keeps the hash that it had before the field was known.
  if (p.controls != Protocol().controls) json["controls"] = arms_to_json(p.controls);
  if (p.pool_limit_bytes != 0) json["pool_limit_bytes"] = p.pool_limit_bytes;
  if (p.process_limit_bytes != 0) json["process_limit_bytes"] = p.process_limit_bytes;
  if (p.device_limit_bytes != 0) json["device_limit_bytes"] = p.device_limit_bytes;
  if (p.looks != Looks()) {
    json["looks"] = {{"fractions", p.looks.fractions}, {"spending", stats::spending_name(p.looks.spending)}};
  }
  return json;
}

Protocol protocol_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  if (fields.text("schema") != kSchema) fields.fail("schema", fmt::format("must be \"{}\"", kSchema));
  Protocol p;
  p.name = fields.text("name");
  p.protocol_class =
      word(fields, "class", {ProtocolClass::kCertifying, ProtocolClass::kScreening}, protocol_class_name);
  p.objective = word(fields, "objective", {Objective::kPreservation, Objective::kAggregate}, objective_name);
  p.margins = margins_from(fields.object("margins"));
  p.alpha = fields.number("alpha");
  p.divisor = fields.integer("divisor");
  panels_from(fields.object("panels"), p);
  p.seed = seed_from(fields, "seed");
  bootstrap_from(fields.object("bootstrap"), p);
  path_from(fields, p);
  p.default_arms = arms_from(fields, "default_arms");
  if (fields.has("looks")) p.looks = looks_from(fields.object("looks"));
  if (fields.has("pool_limit_bytes")) p.pool_limit_bytes = fields.integer("pool_limit_bytes");
  if (fields.has("process_limit_bytes")) p.process_limit_bytes = fields.integer("process_limit_bytes");
  if (fields.has("device_limit_bytes")) p.device_limit_bytes = fields.integer("device_limit_bytes");
  if (fields.has("controls")) p.controls = arms_from(fields, "controls");
  fields.finish();
  validate_protocol(p, origin);
  return p;
}

}  // namespace asymkv
