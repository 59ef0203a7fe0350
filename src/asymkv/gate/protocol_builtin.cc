#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"
#include "asymkv/gate/protocol.h"

namespace asymkv {
namespace {

constexpr uint64_t kSeed = 20261129;

// Panels for the embedded models, small enough for two cores. Why these counts and limits:
// docs/decisions/0003-builtin-protocol.md.
Protocol with_embedded_panels(Protocol p, int64_t math_cases) {
  RetrievalPanel near;
  near.length = 1024;
  near.count = 132;
  near.depths = 22;
  near.distractors = 4;
  near.digits = 5;
  near.limit = 0.05;
  near.generation = {5, {}};
  near.cases_per_unit = 12;
  RetrievalPanel far = near;
  far.length = 8192;
  far.count = 24;
  far.depths = 12;
  far.distractors = 8;
  far.limit = 0.25;
  far.cases_per_unit = 2;
  p.retrieval = {near, far};
  MathPanel math;
  math.count = math_cases;
  math.generation = {80, {"\nQuestion:"}};
  math.cases_per_unit = 28;
  p.math = math;
  LossPanel loss;
  loss.documents = 16;
  loss.document_tokens = 1024;
  loss.scored_tokens = 512;
  loss.cases_per_unit = 4;
  p.loss = {loss};
  return p;
}

// The full panels, for models of any tokenizer: 200 retrieval cases at each length, all of GSM8K's test questions, 160
// documents. Fewer would leave too little room: 200 perfect cases bring the bound to 3.04 % at .05 / 24.
Protocol with_full_panels(Protocol p) {
  RetrievalPanel near;
  near.length = 1024;
  near.count = 200;
  near.depths = 40;
  near.distractors = 4;
  near.digits = 7;
  near.source = DataSource::kGeneric;
  near.generation = {16, {"\n"}};
  near.cases_per_unit = 10;
  RetrievalPanel far = near;
  far.length = 8192;
  far.distractors = 8;
  far.cases_per_unit = 2;
  p.retrieval = {near, far};
  MathPanel math;
  math.source = DataSource::kFile;
  math.count = 1319;
  math.few_shot = 8;
  math.parser = AnswerParser::kFlexible;
  math.generation = {256, {"Question:"}};
  math.cases_per_unit = 16;
  p.math = math;
  LossPanel loss;
  loss.source = DataSource::kFile;
  loss.documents = 128;
  loss.document_tokens = 1024;
  loss.scored_tokens = 512;
  loss.cases_per_unit = 4;
  LossPanel long_loss = loss;
  long_loss.documents = 32;
  long_loss.document_tokens = 8192;
  long_loss.cases_per_unit = 1;
  p.loss = {loss, long_loss};
  return p;
}

Protocol certifying(std::string_view name, int64_t divisor, std::vector<ArmId> arms) {
  Protocol p;
  p.name = name;
  p.protocol_class = ProtocolClass::kCertifying;
  p.objective = Objective::kPreservation;
  p.divisor = divisor;
  p.seed = kSeed;
  p.default_arms = std::move(arms);
  return p;
}

Protocol make_builtin() {
  // 10 candidate arms x 4 bounds each.
  Protocol p = certifying("builtin", 40, {ArmId::kN});
  std::ranges::remove_copy_if(all_arms(), std::back_inserter(p.default_arms), arm_is_control);
  return with_embedded_panels(std::move(p), 336);
}

// The seven arms of published reference studies: every read, prefill included, from stored bytes; 6 candidates x 4
// bounds each.
Protocol reference7(std::string_view name) {
  Protocol p =
      certifying(name, 24, {ArmId::kN, ArmId::kAF, ArmId::kAD, ArmId::kRF, ArmId::kRD, ArmId::kSF, ArmId::kSD});
  p.path = RunPath::kReference;
  p.prefill = Prefill::kPerArm;
  return p;
}

Protocol make_reference7() {
  return with_full_panels(reference7("reference7"));
}

Protocol make_reference7_embedded() {
  Protocol p = with_embedded_panels(reference7("reference7-embedded"), 308);
  // One lost case of 36 is still within the limit at this level; 24 allow none.
  p.retrieval[1].count = 36;
  return p;
}

// As served: two native controls from independent kernels, fixed K16/V8 and dynamic K8/V8, each against each control; 2
// candidates x 4 bounds each.
Protocol worker4(std::string_view name) {
  Protocol p = certifying(name, 8, {ArmId::kN, ArmId::kNR, ArmId::kAF, ArmId::kSD});
  p.controls = {ArmId::kN, ArmId::kNR};
  return p;
}

Protocol make_worker4() {
  return with_full_panels(worker4("worker4"));
}

Protocol make_worker4_embedded() {
  return with_embedded_panels(worker4("worker4-embedded"), 252);
}

// Native, K16/V8 and K8/V8 at 98.75 % a bound.
Protocol make_three() {
  return with_full_panels(certifying("three", 4, {ArmId::kN, ArmId::kAD, ArmId::kSD}));
}

// A first look at any model: bounds are printed, nothing is certified.
Protocol make_quick() {
  Protocol p;
  p.name = "quick";
  p.protocol_class = ProtocolClass::kScreening;
  p.objective = Objective::kPreservation;
  p.divisor = 12;  // 3 candidate arms x 4 bounds each
  p.seed = kSeed;
  RetrievalPanel retrieval;
  retrieval.length = 1024;
  retrieval.count = 20;
  retrieval.depths = 10;
  retrieval.distractors = 4;
  retrieval.digits = 7;
  retrieval.source = DataSource::kGeneric;
  retrieval.generation = {16, {"\n"}};
  retrieval.cases_per_unit = 5;
  p.retrieval = {retrieval};
  MathPanel math;
  math.source = DataSource::kFile;
  math.count = 50;
  math.few_shot = 4;
  math.parser = AnswerParser::kFlexible;
  math.native_floor = 0.20;
  math.generation = {256, {"Question:"}};
  math.cases_per_unit = 10;
  p.math = math;
  LossPanel loss;
  loss.source = DataSource::kFile;
  loss.documents = 8;
  loss.document_tokens = 1024;
  loss.scored_tokens = 512;
  loss.cases_per_unit = 2;
  p.loss = {loss};
  p.default_arms = {ArmId::kN, ArmId::kAD, ArmId::kSD, ArmId::kJD};
  return p;
}

struct NamedProtocol {
  std::string_view name;
  Protocol (*make)();
};
constexpr NamedProtocol kProtocols[] = {
    {"builtin", make_builtin},
    {"quick", make_quick},
    {"three", make_three},
    {"worker4", make_worker4},
    {"worker4-embedded", make_worker4_embedded},
    {"reference7", make_reference7},
    {"reference7-embedded", make_reference7_embedded},
};

std::string known_names() {
  std::string names;
  for (const NamedProtocol& named : kProtocols) names += fmt::format(" {}", named.name);
  return names;
}

}  // namespace

Protocol builtin_protocol(std::string_view name) {
  for (const NamedProtocol& named : kProtocols) {
    if (named.name == name) return named.make();
  }
  throw_usage("unknown protocol \"{}\"; known:{}, or a path to a JSON file", name, known_names());
}

std::vector<std::string> builtin_protocol_names() {
  std::vector<std::string> names;
  for (const NamedProtocol& named : kProtocols) names.emplace_back(named.name);
  return names;
}

Protocol load_protocol(const std::string& name_or_path) {
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (is_path) return protocol_from_json(read_json_file(name_or_path), name_or_path);
  Protocol protocol = builtin_protocol(name_or_path);
  validate_protocol(protocol, "protocol " + protocol.name);
  return protocol;
}

}  // namespace asymkv
