#include <algorithm>
#include <filesystem>
#include <iterator>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"
#include "asymkv/gate/protocol.h"

namespace asymkv {
namespace {

// For the embedded models. Why these counts and limits: docs/decisions/0003-builtin-protocol.md.
Protocol make_builtin() {
  Protocol p;
  p.name = "builtin";
  p.protocol_class = ProtocolClass::kCertifying;
  p.objective = Objective::kPreservation;
  p.divisor = 40;  // 10 candidate arms x 4 bounds each
  p.seed = 20261129;
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
  math.count = 336;
  math.generation = {80, {"\nQuestion:"}};
  math.cases_per_unit = 28;
  p.math = math;
  LossPanel loss;
  loss.documents = 16;
  loss.document_tokens = 1024;
  loss.scored_tokens = 512;
  loss.cases_per_unit = 4;
  p.loss = {loss};
  p.default_arms = {ArmId::kN};
  std::ranges::remove_copy_if(all_arms(), std::back_inserter(p.default_arms), arm_is_control);
  return p;
}

// A first look at any model: bounds are printed, nothing is certified.
Protocol make_quick() {
  Protocol p;
  p.name = "quick";
  p.protocol_class = ProtocolClass::kScreening;
  p.objective = Objective::kPreservation;
  p.divisor = 12;  // 3 candidate arms x 4 bounds each
  p.seed = 20261129;
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
constexpr NamedProtocol kProtocols[] = {{"builtin", make_builtin}, {"quick", make_quick}};

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
