#include "asymkv/gate/protocol.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/stats/intervals.h"
#include "asymkv/stats/required_cases.h"

namespace asymkv {
namespace {

// Refusals of one protocol; `field` is its JSON path.
class Checker {
 public:
  explicit Checker(std::string_view origin) : origin_(origin) {}

  void require(bool ok, std::string_view field, std::string_view what) const {
    if (!ok) throw_bad_input("{}: field \"{}\" {}", origin_, field, what);
  }
  void range(int64_t value, std::string_view field, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return;
    throw_bad_input("{}: field \"{}\" must lie between {} and {}, but it is {}", origin_, field, low, high, value);
  }
  // Both ends excluded; NaN is refused too.
  void open_range(double value, std::string_view field, double low, double high) const {
    if (value > low && value < high) return;
    throw_bad_input("{}: field \"{}\" must lie between {} and {} (both excluded), but it is {}", origin_, field, low,
                    high, value);
  }
  void share(double value, std::string_view field) const {
    if (value >= 0.0 && value <= 1.0) return;
    throw_bad_input("{}: field \"{}\" must lie between 0 and 1, but it is {}", origin_, field, value);
  }

 private:
  std::string_view origin_;
};

constexpr int64_t kMaxTokens = 1 << 20;
constexpr double kMaxCertifyingAlpha = 0.05;
constexpr int64_t kMaxLimitBytes = int64_t{1} << 50;
constexpr int64_t kMaxPanelCases = 1'000'000;
constexpr int64_t kMaxCasesPerUnit = 1024;
constexpr int64_t kMaxSeed = INT64_MAX;

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void check_hashes(const Checker& check, DataSource source, const std::vector<std::string>& hashes,
                  const std::string& at) {
  const std::string field = at + "data_sha256";
  if (source != DataSource::kFile) check.require(hashes.empty(), field, "is for panels whose source is \"file\"");
  for (const std::string& hash : hashes) {
    check.require(is_sha256(hash), field, fmt::format("holds \"{}\", which is no lower-case SHA-256", hash));
  }
}

void check_generation(const Checker& check, const GenerationLimits& limits, const std::string& at) {
  check.range(limits.token_limit, at + "generation.token_limit", 1, 8192);
  for (const std::string& stop : limits.stops) {
    check.require(!stop.empty(), at + "generation.stops", "holds an empty text, which would end every answer at once");
  }
}

void check_retrieval(const Checker& check, const RetrievalPanel& panel, const std::string& at) {
  check.range(panel.length, at + "length", 128, kMaxTokens);
  check.range(panel.count, at + "count", 1, kMaxPanelCases);
  check.range(panel.depths, at + "depths", 1, panel.count);
  check.range(panel.distractors, at + "distractors", 0, 64);
  // The needle, distractors and question must fit; some 30 tokens each.
  check.require(panel.length >= 64 + 40 * (panel.distractors + 1), at + "distractors",
                "does not fit into \"length\": lower it or raise the length");
  check.range(panel.digits, at + "digits", 1, 18);
  check.open_range(panel.limit, at + "limit", 0.0, 1.0);
  check.share(panel.native_floor, at + "native_floor");
  if (panel.source == DataSource::kBuiltin) {
    check.require(panel.digits == 5, at + "digits",
                  "must be 5 for the embedded models, which were trained on 5 digits");
  }
  check_hashes(check, panel.source, panel.data_sha256, at);
  check_generation(check, panel.generation, at);
  check.require(panel.generation.token_limit >= (panel.source == DataSource::kBuiltin ? panel.digits : 1),
                at + "generation.token_limit", "is too small for the answer");
  check.range(panel.cases_per_unit, at + "cases_per_unit", 1, kMaxCasesPerUnit);
}

void check_math(const Checker& check, const MathPanel& panel, const std::string& at) {
  check.require(panel.source != DataSource::kGeneric, at + "source", "must be \"builtin\" or \"file\"");
  check.range(panel.count, at + "count", 1, kMaxPanelCases);
  check.range(panel.few_shot, at + "few_shot", 0, 64);
  if (panel.source == DataSource::kBuiltin) {
    check.require(panel.few_shot == 0, at + "few_shot", "must be 0 for the builtin problems, which need no examples");
    check.require(panel.prompt == MathPrompt::kFewShot, at + "prompt",
                  "must be \"few-shot\" for the builtin problems, whose models know no chat template");
  }
  if (panel.prompt == MathPrompt::kChat) {
    check.require(panel.few_shot == 0, at + "few_shot", "must be 0 where \"prompt\" is \"chat\"");
  }
  check.share(panel.native_floor, at + "native_floor");
  check_hashes(check, panel.source, panel.data_sha256, at);
  check_generation(check, panel.generation, at);
  check.range(panel.cases_per_unit, at + "cases_per_unit", 1, kMaxCasesPerUnit);
}

void check_loss(const Checker& check, const LossPanel& panel, const std::string& at) {
  check.require(panel.source != DataSource::kGeneric, at + "source", "must be \"builtin\" or \"file\"");
  check.range(panel.documents, at + "documents", 2, kMaxPanelCases);
  check.range(panel.document_tokens, at + "document_tokens", 16, kMaxTokens);
  check.range(panel.scored_tokens, at + "scored_tokens", 1, panel.document_tokens - 1);
  check_hashes(check, panel.source, panel.data_sha256, at);
  check.range(panel.cases_per_unit, at + "cases_per_unit", 1, kMaxCasesPerUnit);
}

void check_panels(const Checker& check, const Protocol& p) {
  int64_t last = 0;
  for (size_t i = 0; i < p.retrieval.size(); ++i) {
    const std::string at = fmt::format("panels.retrieval[{}].", i);
    check_retrieval(check, p.retrieval[i], at);
    check.require(p.retrieval[i].length > last, at + "length", "must be larger than that of the panel before it");
    last = p.retrieval[i].length;
  }
  if (p.math) check_math(check, *p.math, "panels.math.");
  last = 0;
  for (size_t i = 0; i < p.loss.size(); ++i) {
    const std::string at = fmt::format("panels.loss[{}].", i);
    check_loss(check, p.loss[i], at);
    check.require(p.loss[i].document_tokens > last, at + "document_tokens",
                  "must be larger than that of the panel before it");
    last = p.loss[i].document_tokens;
  }
  check.require(!p.retrieval.empty() || p.math || !p.loss.empty(), "panels", "holds no panel: nothing would be asked");
}

void check_arms(const Checker& check, const std::vector<ArmId>& arms) {
  check.require(!arms.empty() && arms.front() == ArmId::kN, "default_arms", "must begin with N, the native control");
  const std::set<ArmId> unique(arms.begin(), arms.end());
  check.require(unique.size() == arms.size(), "default_arms", "names an arm twice");
  check.require(!unique.contains(ArmId::kN2), "default_arms", "must not name N2, which the gate adds itself");
}

void check_controls(const Checker& check, const Protocol& p) {
  check.require(!p.controls.empty() && p.controls.front() == ArmId::kN, "controls", "must begin with N");
  const std::set<ArmId> unique(p.controls.begin(), p.controls.end());
  check.require(unique.size() == p.controls.size(), "controls", "names an arm twice");
  for (const ArmId control : p.controls) {
    check.require(arm_is_native(control) && control != ArmId::kN2, "controls",
                  fmt::format("names {}, which is no native control", arm_name(control)));
    check.require(std::ranges::find(p.default_arms, control) != p.default_arms.end(), "controls",
                  fmt::format("names {}, which \"default_arms\" lacks", arm_name(control)));
  }
}

void check_looks(const Checker& check, const Protocol& p) {
  const std::vector<double>& fractions = p.looks.fractions;
  check.require(!fractions.empty() && fractions.back() == 1.0, "looks.fractions", "must end at 1, where all is asked");
  check.range(static_cast<int64_t>(fractions.size()), "looks.fractions", 1, 20);
  double last = 0.0;
  for (const double fraction : fractions) {
    check.require(fraction > last, "looks.fractions", "must rise strictly, from above 0 to 1");
    last = fraction;
  }
  check.require(static_cast<double>(p.bootstrap_resamples) * p.look_levels().back() >= 1.0, "bootstrap.resamples",
                "is too small for the level of the last look: no resample would lie beyond the bound");
}

void check_path(const Checker& check, const Protocol& p) {
  check.range(p.chunk_tokens, "chunk_tokens", 0, kMaxTokens);
  check.range(p.pool_limit_bytes, "pool_limit_bytes", 0, kMaxLimitBytes);
  check.range(p.process_limit_bytes, "process_limit_bytes", 0, kMaxLimitBytes);
  check.range(p.device_limit_bytes, "device_limit_bytes", 0, kMaxLimitBytes);
  if (p.prefill != Prefill::kShared) return;
  check.require(p.path == RunPath::kWorker, "prefill",
                "must be \"per-arm\" on the reference path, where a prefill reads the arm's stored bytes");
  if (p.chunk_tokens == 0) return;
  for (const RetrievalPanel& panel : p.retrieval) {
    check.require(p.chunk_tokens >= panel.length, "prefill",
                  fmt::format("must be \"per-arm\": {} does not fit into one chunk of {} tokens, and later chunks read "
                              "the arm's stored bytes",
                              panel.name(), p.chunk_tokens));
  }
}

// "panel X: even with no loss at all ..., so count must be at least N".
[[noreturn]] void throw_unattainable(std::string_view origin, std::string_view panel, std::string_view bound,
                                     int64_t count, int64_t needed) {
  throw_bad_input(
      "{}: panel {} cannot pass even a perfect candidate: with {} cases and no loss the {} misses its limit; it needs "
      "at least {} cases (or class \"screening\", which certifies nothing)",
      origin, panel, count, bound, needed);
}

void require_math_attainable(const Protocol& p, std::string_view origin) {
  const double alpha = p.look_levels().back();
  const int64_t count = p.math->count;
  if (p.objective == Objective::kPreservation) {
    const int64_t needed = stats::cases_for_limit(p.margins.preservation_limit, alpha);
    if (count < needed) throw_unattainable(origin, "math", "upper bound of lost answers", count, needed);
  } else {
    const int64_t needed = stats::cases_for_margin(p.margins.aggregate_margin, alpha);
    if (count < needed) throw_unattainable(origin, "math", "lower bound of the net change", count, needed);
  }
}

void require_hashes(const Checker& check, DataSource source, const std::vector<std::string>& hashes,
                    const std::string& at) {
  if (source != DataSource::kFile) return;
  check.require(!hashes.empty(), at + "data_sha256",
                "must name the SHA-256 of every file in a certifying protocol, so that the evidence names its data");
}

template <typename Enum, size_t kCount>
std::string_view enum_name(const std::array<std::string_view, kCount>& names, Enum value) {
  return names.at(static_cast<size_t>(value));
}

}  // namespace

std::string_view protocol_class_name(ProtocolClass value) {
  return enum_name(std::array<std::string_view, 2>{"certifying", "screening"}, value);
}

std::string_view objective_name(Objective value) {
  return enum_name(std::array<std::string_view, 2>{"preservation", "aggregate"}, value);
}

std::string_view run_path_name(RunPath value) {
  return enum_name(std::array<std::string_view, 2>{"worker", "reference"}, value);
}

std::string_view prefill_name(Prefill value) {
  return enum_name(std::array<std::string_view, 2>{"shared", "per-arm"}, value);
}

std::string_view math_prompt_name(MathPrompt value) {
  return enum_name(std::array<std::string_view, 2>{"few-shot", "chat"}, value);
}

std::string_view answer_parser_name(AnswerParser value) {
  return enum_name(std::array<std::string_view, 2>{"strict", "flexible"}, value);
}

std::string_view data_source_name(DataSource value) {
  return enum_name(std::array<std::string_view, 3>{"builtin", "generic", "file"}, value);
}

RunPath parse_run_path(std::string_view name) {
  if (name == "worker") return RunPath::kWorker;
  if (name == "reference") return RunPath::kReference;
  throw_usage("unknown path \"{}\"; known: worker reference", name);
}

Prefill parse_prefill(std::string_view name) {
  if (name == "shared") return Prefill::kShared;
  if (name == "per-arm") return Prefill::kPerArm;
  throw_usage("unknown prefill \"{}\"; known: shared per-arm", name);
}

std::string RetrievalPanel::name() const {
  return fmt::format("retrieval-{}", length);
}

std::string LossPanel::name() const {
  return fmt::format("loss-{}", document_tokens);
}

std::vector<double> Protocol::look_levels() const {
  if (looks.fractions.size() == 1) return {alpha_per_bound()};
  return stats::spend_alpha(alpha_per_bound(), looks.fractions, looks.spending);
}

std::string protocol_sha256(const Protocol& protocol) {
  return sha256_hex(canonical_json(protocol_to_json(protocol)));
}

void validate_protocol(const Protocol& p, std::string_view origin) {
  const Checker check(origin);
  check.require(!p.name.empty(), "name", "is empty");
  check.open_range(p.margins.preservation_limit, "margins.preservation_limit", 0.0, 1.0);
  check.open_range(p.margins.aggregate_margin, "margins.aggregate_margin", -1.0, 0.0);
  check.open_range(p.margins.loss_limit, "margins.loss_limit", 0.0, 1.0);
  check.open_range(p.alpha, "alpha", 0.0, 0.5);
  check.range(p.divisor, "divisor", 1, 1'000'000);
  check.range(p.bootstrap_resamples, "bootstrap.resamples", 1000, 10'000'000);
  check.require(p.seed <= static_cast<uint64_t>(kMaxSeed), "seed", "is above the largest integer served");
  check.require(p.bootstrap_seed <= static_cast<uint64_t>(kMaxSeed), "bootstrap.seed",
                "is above the largest integer served");
  check_panels(check, p);
  check_arms(check, p.default_arms);
  check_controls(check, p);
  check_looks(check, p);
  check_path(check, p);
}

void require_attainable(const Protocol& p, std::string_view origin) {
  if (p.protocol_class != ProtocolClass::kCertifying) return;
  const Checker check(origin);
  check.require(p.alpha <= kMaxCertifyingAlpha, "alpha",
                "is above 0.05: that is no evidence to certify by; set class to \"screening\"");
  check.require(!p.retrieval.empty(), "panels.retrieval", "is empty: a certificate needs retrieval, math and loss");
  check.require(p.math.has_value(), "panels.math", "is missing: a certificate needs retrieval, math and loss");
  check.require(!p.loss.empty(), "panels.loss", "is empty: a certificate needs retrieval, math and loss");
  for (size_t i = 0; i < p.retrieval.size(); ++i) {
    const RetrievalPanel& panel = p.retrieval[i];
    require_hashes(check, panel.source, panel.data_sha256, fmt::format("panels.retrieval[{}].", i));
    const int64_t needed = stats::cases_for_limit(panel.limit, p.look_levels().back());
    if (panel.count < needed) {
      throw_unattainable(origin, panel.name(), "upper bound of lost needles", panel.count, needed);
    }
  }
  require_hashes(check, p.math->source, p.math->data_sha256, "panels.math.");
  require_math_attainable(p, origin);
  for (size_t i = 0; i < p.loss.size(); ++i) {
    require_hashes(check, p.loss[i].source, p.loss[i].data_sha256, fmt::format("panels.loss[{}].", i));
  }
}

}  // namespace asymkv
