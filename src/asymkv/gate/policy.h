#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/gate/admission_record.h"
#include "asymkv/gate/judgement.h"
#include "asymkv/gate/policy_mode.h"
#include "asymkv/gate/probe.h"

namespace asymkv {

// What may be stored in fewer bytes. Ordered: each tier saves more than the one before.
enum class Tier { kNative, kK16V8, kK8V8 };
std::string_view tier_name(Tier tier);  // "native", "K16/V8", "K8/V8"
// Accepts the names in either case and the --kv aliases (k16v8, k8v8). Throws Error{kUsage} with the known ones.
Tier parse_tier(std::string_view text);

// A certified format that saves more than the chosen one, whose serving gate has not run on this worker: offered, never
// chosen.
struct CapacityOption {
  ArmId arm = ArmId::kJD;
  double saved_pct = 0;  // bytes saved against native
};

struct PolicyDecision {
  Tier tier = Tier::kNative;
  ArmId arm = ArmId::kN;  // whose format is chosen
  PolicyMode mode = PolicyMode::kKnee;
  bool certified = false;
  std::string reason;                   // one sentence, in the gate's words
  std::optional<int64_t> needed_cases;  // for a tier that is chosen without a certificate
  std::vector<CapacityOption> capacity_options;
};

// Exact bytes per token of each arm's cache.
using ArmBytes = std::map<ArmId, int64_t>;
// Those of every arm but N2, from the run's cache shape: the layout's bytes of a page over its slots, in all layers.
ArmBytes arm_bytes(const Run& run);

// The table of docs/concepts.md: S certified -> K8/V8; else A certified -> K16/V8; else fragile keys and A unharmed ->
// K16/V8 (knee) or native (certified); else native. Of two certified scale policies the one with fewer bytes wins, then
// the larger distance from the deciding limit, then fixed scales. Throws Error{kInternal} if `bytes` lacks an arm.
PolicyDecision choose_policy(const Judgement& judgement, const ProbeResult& probe, const Protocol& protocol,
                             const ArmBytes& bytes, PolicyMode mode);

inline constexpr std::string_view kPolicySchema = "asymkv.policy/1";
// {"schema": "asymkv.policy/1", ...}: what a server checks before it serves the format (policy_file.h). `record` names
// the key bias that the arm took out.
Json policy_to_json(const PolicyDecision& decision, const Run& run, const AdmissionRecord& record,
                    std::string_view certificate_sha256);

}  // namespace asymkv
