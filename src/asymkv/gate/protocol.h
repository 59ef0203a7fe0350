#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/arm.h"
#include "asymkv/gate/case.h"
#include "asymkv/gate/runner.h"
#include "asymkv/stats/sequential.h"

namespace asymkv {

enum class ProtocolClass : uint8_t { kCertifying, kScreening };  // screening prints bounds and never certifies
enum class Objective : uint8_t { kPreservation, kAggregate };
enum class RunPath : uint8_t { kWorker, kReference };
enum class Prefill : uint8_t { kShared, kPerArm };
enum class MathPrompt : uint8_t { kFewShot, kChat };  // worked examples before the question; the model's chat template
enum class AnswerParser : uint8_t { kStrict, kFlexible };  // "#### N" only; the last number of the text

std::string_view protocol_class_name(ProtocolClass value);  // "certifying", "screening"
std::string_view objective_name(Objective value);           // "preservation", "aggregate"
std::string_view run_path_name(RunPath value);              // "worker", "reference"
std::string_view prefill_name(Prefill value);               // "shared", "per-arm"
std::string_view math_prompt_name(MathPrompt value);        // "few-shot", "chat"
std::string_view answer_parser_name(AnswerParser value);    // "strict", "flexible"
// For options; throw Error{kUsage} naming the text and the known words.
RunPath parse_run_path(std::string_view name);
Prefill parse_prefill(std::string_view name);

// Fractions: 0.02 is 2 %, -0.01 is -1 percentage point.
struct Margins {
  double preservation_limit = 0.02;
  double aggregate_margin = -0.01;
  double loss_limit = 0.01;
  bool operator==(const Margins&) const = default;
};

// Where a panel's texts come from. `builtin`: the generators of the embedded byte-level models. `generic`: the built-in
// texts for any tokenizer (retrieval only). `file`: files named at run time, identified here by the SHA-256 of their
// bytes (empty: any file, screening only, until resolve_data fills it in).
enum class DataSource : uint8_t { kBuiltin, kGeneric, kFile };
std::string_view data_source_name(DataSource value);  // "builtin", "generic", "file"

struct RetrievalPanel {
  int64_t length = 1024;  // tokens: BOS, context, question, answer
  int64_t count = 0;      // cases
  int64_t depths = 1;     // needle depths, spread evenly; cases take them in turn (generic)
  int64_t distractors = 0;
  int64_t digits = 5;
  double limit = 0.05;         // of the upper bound of lost / n
  double native_floor = 0.90;  // native accuracy below it makes the panel uninformative
  DataSource source = DataSource::kBuiltin;
  std::vector<std::string> data_sha256;  // source file: filler text
  GenerationLimits generation;
  int64_t cases_per_unit = 1;
  std::string name() const;  // "retrieval-1024"
};

struct MathPanel {
  DataSource source = DataSource::kBuiltin;
  std::vector<std::string> data_sha256;  // source file: the questions, then the few-shot file if few_shot > 0
  int64_t count = 0;
  int64_t few_shot = 0;
  MathPrompt prompt = MathPrompt::kFewShot;  // source file
  AnswerParser parser = AnswerParser::kStrict;
  double native_floor = 0.30;
  GenerationLimits generation;
  int64_t cases_per_unit = 1;
  std::string name() const { return "math"; }
};

struct LossPanel {
  int64_t documents = 0;
  int64_t document_tokens = 1024;
  int64_t scored_tokens = 512;
  DataSource source = DataSource::kBuiltin;
  std::vector<std::string> data_sha256;  // source file: the texts, in order
  int64_t cases_per_unit = 1;
  std::string name() const;  // "loss-1024"
};

// When the gate looks: shares of every panel's cases, rising to 1, and how alpha is spent over them
// (stats/sequential.h). One look, at the end, is the plain fixed-sample protocol.
struct Looks {
  std::vector<double> fractions = {1.0};
  stats::Spending spending = stats::Spending::kObrienFleming;
  bool operator==(const Looks&) const = default;
};

// Everything that is fixed before the first case runs. Its canonical JSON is protocol.json of a run; the SHA-256 of
// those bytes is the protocol's hash.
struct Protocol {
  std::string name;
  ProtocolClass protocol_class = ProtocolClass::kScreening;
  Objective objective = Objective::kPreservation;  // the deciding one; the other is reported
  Margins margins;
  double alpha = 0.05;
  int64_t divisor = 1;
  std::vector<RetrievalPanel> retrieval;  // by rising length
  std::optional<MathPanel> math;
  std::vector<LossPanel> loss;  // by rising document_tokens
  uint64_t seed = 1;            // of every generated case
  int64_t bootstrap_resamples = 100'000;
  uint64_t bootstrap_seed = 1;
  RunPath path = RunPath::kWorker;
  Prefill prefill = Prefill::kShared;
  int64_t chunk_tokens = 0;  // prefill chunk; 0: a prompt part is one chunk whatever its length
  // Most bytes that the planes of all arms' caches may hold together, 0: no limit. A unit that needs more is answered
  // in parts (on the CPU to the same bits); a case that alone needs more is refused before the first one is asked.
  int64_t pool_limit_bytes = 0;
  // What the whole run may take, 0: no limit: peak resident memory of the process, and memory in use on the GPU (0
  // where nothing runs on one). A run that is found above either after a unit of work ends there, without a
  // certificate.
  int64_t process_limit_bytes = 0;
  int64_t device_limit_bytes = 0;
  bool noise_floor = true;  // run arm N2
  // What every other arm is compared with: N, and where there is a second kernel family for native
  // caches, that one too.
  std::vector<ArmId> controls = {ArmId::kN};
  std::vector<ArmId> default_arms;
  Looks looks;

  double alpha_per_bound() const { return alpha / static_cast<double>(divisor); }
  // What each bound may spend at each look; {alpha_per_bound()} without looks.
  std::vector<double> look_levels() const;
};

Json protocol_to_json(const Protocol& protocol);
// Strict and validated: a missing, unknown, mistyped or out-of-range field is an Error{kBadInput} naming `origin` and
// the field ("panels.retrieval[0].count").
Protocol protocol_from_json(const Json& json, std::string_view origin);
std::string protocol_sha256(const Protocol& protocol);

// Ranges and contradictions of one protocol: throws Error{kBadInput} naming the field.
void validate_protocol(const Protocol& protocol, std::string_view origin);
// Refuses a certifying protocol that even a perfect candidate could not pass: throws Error{kBadInput} that names panel,
// bound and the number of cases that would be needed. Also refuses a certifying protocol whose files have no hash.
void require_attainable(const Protocol& protocol, std::string_view origin);

// "builtin" (certifying, embedded models) or "quick" (screening, any model). Throws Error{kUsage} listing the names.
Protocol builtin_protocol(std::string_view name);
std::vector<std::string> builtin_protocol_names();
// A built-in name or a path to a JSON file, validated either way.
Protocol load_protocol(const std::string& name_or_path);

}  // namespace asymkv
