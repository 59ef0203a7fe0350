#include "asymkv/gate/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "asymkv/base/error.h"
#include "asymkv/kv/layout.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

using stats::Verdict;

int64_t bytes_of(const ArmBytes& bytes, ArmId arm) {
  const auto it = bytes.find(arm);
  ASYMKV_CHECK(it != bytes.end() && it->second > 0, "no bytes per token of arm {}", arm_name(arm));
  return it->second;
}

// Distance of the deciding bound from its limit, larger is safer.
double deciding_margin(const ArmJudgement& arm, Objective objective) {
  if (!arm.math || !arm.math->preservation_bound) return 0.0;
  if (objective == Objective::kPreservation) {
    return arm.math->preservation_bound->limit - arm.math->preservation_bound->upper;
  }
  return arm.math->aggregate_bound->lower - arm.math->aggregate_bound->margin;
}

struct Chooser {
  const Judgement& judgement;
  const Protocol& protocol;
  const ArmBytes& bytes;

  // The certified one of a format's two scale policies: fewer bytes, then the larger margin.
  std::optional<ArmId> certified(ArmId fixed, ArmId dynamic) const {
    if (!judgement.certified(fixed) || !judgement.certified(dynamic)) {
      if (judgement.certified(fixed)) return fixed;
      return judgement.certified(dynamic) ? std::optional(dynamic) : std::nullopt;
    }
    const int64_t fixed_bytes = bytes_of(bytes, fixed), dynamic_bytes = bytes_of(bytes, dynamic);
    if (fixed_bytes != dynamic_bytes) return fixed_bytes < dynamic_bytes ? fixed : dynamic;
    return smallest_margin(fixed) >= smallest_margin(dynamic) ? fixed : dynamic;
  }

  // An A arm that passes retrieval and loss and shows no degradation, fixed scales first.
  std::optional<ArmId> unharmed_a() const {
    for (const ArmId id : {ArmId::kAF, ArmId::kAD}) {
      const auto judged = judgement.of(id);
      if (!judged.empty() && std::ranges::all_of(judged, unharmed)) return id;
    }
    return std::nullopt;
  }

 private:
  static bool unharmed(const ArmJudgement* arm) {
    return arm->retrieval_and_loss() == Verdict::kPass &&
           worse(arm->preservation, arm->aggregate) != Verdict::kDegraded;
  }
  double smallest_margin(ArmId id) const {
    double margin = std::numeric_limits<double>::infinity();
    for (const ArmJudgement* arm : judgement.of(id)) {
      margin = std::min(margin, deciding_margin(*arm, protocol.objective));
    }
    return margin;
  }
};

std::optional<int64_t> needed_cases(const ArmJudgement& arm, Objective objective) {
  if (!arm.math) return std::nullopt;
  return objective == Objective::kPreservation ? arm.math->preservation_needed : arm.math->aggregate_needed;
}

// Of an arm's judgements the one that is furthest from a certificate.
const ArmJudgement& hardest(const Judgement& judgement, ArmId arm, Objective objective) {
  const auto judged = judgement.of(arm);
  const ArmJudgement* found = judged.at(0);
  for (const ArmJudgement* other : judged) {
    const Verdict a = found->objective(objective), b = other->objective(objective);
    const bool more_cases = needed_cases(*other, objective) > needed_cases(*found, objective);
    if (a == b ? more_cases : worse(a, b) == b) found = other;
  }
  return *found;
}

std::vector<CapacityOption> capacity_options(const Judgement& judgement, const ArmBytes& bytes, ArmId chosen) {
  std::vector<CapacityOption> options;
  for (const ArmId id : {ArmId::kPF, ArmId::kPD, ArmId::kID, ArmId::kJD}) {
    if (!judgement.certified(id) || bytes_of(bytes, id) >= bytes_of(bytes, chosen)) continue;
    const auto native = static_cast<double>(bytes_of(bytes, ArmId::kN));
    options.push_back({id, 100.0 * (1.0 - static_cast<double>(bytes_of(bytes, id)) / native)});
  }
  return options;
}

bool any_a_degraded(const Judgement& judgement) {
  for (const ArmId id : {ArmId::kAF, ArmId::kAD}) {
    for (const ArmJudgement* arm : judgement.of(id)) {
      if (worse(arm->preservation, arm->aggregate) == Verdict::kDegraded) return true;
    }
  }
  return false;
}

// Why an arm that passes retrieval and loss has no certificate.
std::string missing_for_certificate(const ArmJudgement& arm, const Protocol& protocol) {
  if (const auto needed = needed_cases(arm, protocol.objective)) {
    return fmt::format("needs n = {} math cases at the observed rate", *needed);
  }
  if (arm.objective(protocol.objective) == Verdict::kUninformative) {
    return "native misses the floor of the math panel";
  }
  if (protocol.protocol_class == ProtocolClass::kScreening) {
    return fmt::format("protocol {} is a screening one", protocol.name);
  }
  return fmt::format("{} is not established", objective_name(protocol.objective));
}

// The panels that keep an arm from passing retrieval and loss, each with its verdict; all well if there is none.
std::string open_panels(const ArmJudgement& arm) {
  std::vector<std::string> open;
  for (const RetrievalJudgement& panel : arm.retrieval) {
    if (panel.verdict == Verdict::kPass) continue;
    open.push_back(fmt::format("retrieval at {} {}", panel.length, verdict_words(panel.verdict)));
    if (panel.needed) open.back() += fmt::format(" (needs n = {})", *panel.needed);
  }
  for (const LossJudgement& panel : arm.loss) {
    if (panel.verdict != Verdict::kPass) open.push_back(fmt::format("loss {}", verdict_words(panel.verdict)));
  }
  if (arm.retrieval.empty()) open.emplace_back("retrieval not tested");
  if (arm.loss.empty()) open.emplace_back("loss not tested");
  return open.empty() ? "retrieval and loss pass" : fmt::format("{}", fmt::join(open, ", "));
}

// What would have to be known before fewer bytes can be stored.
std::string nothing_known(const Judgement& judgement, const ProbeResult& probe) {
  if (any_a_degraded(judgement)) return "no format is certified, and a loss with K16/V8 was shown";
  std::string reason = fmt::format("no format is certified; the probe says {}", fragility_name(probe.verdict));
  for (const ArmId id : {ArmId::kAF, ArmId::kAD}) {
    const auto judged = judgement.of(id);
    for (const ArmJudgement* arm : judged) {
      const std::string against = judged.size() > 1 ? fmt::format(" against {}", arm_name(arm->control)) : "";
      reason += fmt::format("; {}{}: {}", arm_name(id), against, open_panels(*arm));
    }
  }
  return reason;
}

// What is known without any certificate.
void decide_uncertified(const Chooser& chooser, const ProbeResult& probe, PolicyDecision& decision) {
  const std::optional<ArmId> a = chooser.unharmed_a();
  if (probe.verdict != Fragility::kFragile || !a) {
    decision.reason = nothing_known(chooser.judgement, probe);
    return;
  }
  const ArmJudgement& hardest_a = hardest(chooser.judgement, *a, chooser.protocol.objective);
  decision.needed_cases = needed_cases(hardest_a, chooser.protocol.objective);
  const std::string missing = missing_for_certificate(hardest_a, chooser.protocol);
  if (decision.mode == PolicyMode::kCertified) {
    decision.reason =
        fmt::format("nothing is certified ({}: {}), and policy mode certified chooses nothing without a certificate",
                    arm_name(*a), missing);
    return;
  }
  decision.tier = Tier::kK16V8;
  decision.arm = *a;
  decision.reason = fmt::format(
      "not certified ({}); the keys are fragile and {} passes retrieval and loss with no degradation shown: the "
      "fragile-key default",
      missing, arm_name(*a));
}

void decide_certified(ArmId arm, Tier tier, const Protocol& protocol, PolicyDecision& decision) {
  decision.tier = tier;
  decision.arm = arm;
  decision.certified = true;
  decision.reason = fmt::format("{} ({}) is certified for {} on this worker", arm_name(arm), arm_description(arm),
                                objective_name(protocol.objective));
  if (tier == Tier::kK16V8) decision.reason += ", K8/V8 is not";
}

}  // namespace

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kNative:
      return "native";
    case Tier::kK16V8:
      return "K16/V8";
    case Tier::kK8V8:
      return "K8/V8";
  }
  return "?";
}

Tier parse_tier(std::string_view text) {
  if (text == "native") return Tier::kNative;
  if (text == "K16/V8" || text == "k16/v8" || text == "k16v8") return Tier::kK16V8;
  if (text == "K8/V8" || text == "k8/v8" || text == "k8v8") return Tier::kK8V8;
  throw_usage("unknown tier \"{}\"; known: native, K16/V8 (k16v8), K8/V8 (k8v8)", text);
}

ArmBytes arm_bytes(const Run& run) {
  const DType native = parse_dtype(run.identity.native_dtype);
  ArmBytes bytes;
  for (const ArmId arm : run.arms) {
    if (arm == ArmId::kN2) continue;
    const KvLayout layout(run.cache.layer, arm_format(arm, native));
    bytes[arm] = layout.page_bytes().total() * run.cache.num_layers / run.cache.layer.page_size;
  }
  return bytes;
}

PolicyDecision choose_policy(const Judgement& judgement, const ProbeResult& probe, const Protocol& protocol,
                             const ArmBytes& bytes, PolicyMode mode) {
  const Chooser chooser{judgement, protocol, bytes};
  PolicyDecision decision;
  decision.mode = mode;
  if (const auto s = chooser.certified(ArmId::kSF, ArmId::kSD)) {
    decide_certified(*s, Tier::kK8V8, protocol, decision);
  } else if (const auto a = chooser.certified(ArmId::kAF, ArmId::kAD)) {
    decide_certified(*a, Tier::kK16V8, protocol, decision);
  } else {
    decide_uncertified(chooser, probe, decision);
  }
  decision.capacity_options = capacity_options(judgement, bytes, decision.arm);
  return decision;
}

Json policy_to_json(const PolicyDecision& decision, const Run& run, const AdmissionRecord& record,
                    std::string_view certificate_sha256) {
  const KvFormat format = arm_format(decision.arm, parse_dtype(run.identity.native_dtype));
  int64_t longest = 0;
  for (const RetrievalPanel& panel : run.protocol.retrieval) longest = std::max(longest, panel.length);
  const auto transform = [&record](ArmId arm) {
    const auto facts = record.arms.find(arm);
    return facts == record.arms.end() ? std::string() : facts->second.transform.sha256;
  };
  Json options = Json::array();
  for (const CapacityOption& option : decision.capacity_options) {
    options.push_back({{"arm", arm_name(option.arm)},
                       {"format", arm_format(option.arm, parse_dtype(run.identity.native_dtype)).id()},
                       {"saved_pct", option.saved_pct},
                       {"transform_sha256", transform(option.arm)}});
  }
  return {{"schema", kPolicySchema},
          {"tier", tier_name(decision.tier)},
          {"arm", arm_name(decision.arm)},
          {"key", format.key.id()},
          {"value", format.value.id()},
          {"scale", scale_kind_name(format.scale())},
          {"certified", decision.certified},
          {"mode", policy_mode_name(decision.mode)},
          {"reason", decision.reason},
          {"needed_cases", decision.needed_cases ? Json(*decision.needed_cases) : Json()},
          {"capacity_options", std::move(options)},
          {"model_weights_sha256", run.identity.model_sha256},
          {"config_sha256", run.identity.config_sha256},
          {"tokenizer_sha256", run.identity.tokenizer_sha256},
          {"worker", run.identity.worker.substr(0, run.identity.worker.find(kControlMark))},
          {"build", run.identity.build},
          {"path", run_path_name(run.protocol.path)},
          {"scales_sha256", format.scale() == ScaleKind::kFixed ? run.identity.scales_sha256 : ""},
          {"transform_sha256", transform(decision.arm)},
          {"max_context_tokens", longest},
          {"certificate_sha256", certificate_sha256},
          {"expires",
           {{"with",
             {"model_weights_sha256", "config_sha256", "tokenizer_sha256", "worker", "build", "scales_sha256",
              "transform_sha256"}}}}};
}

}  // namespace asymkv
