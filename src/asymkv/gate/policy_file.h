#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "asymkv/gate/policy.h"

namespace asymkv {

// policy.json as a server reads it.
struct ServingPolicy {
  Tier tier = Tier::kNative;
  ArmId arm = ArmId::kN;
  std::string key, value;  // exact ids: "bf16", "e4m3"
  std::string scale;       // "none", "fixed", "dynamic"
  bool certified = false;
  std::string reason;
  std::string path;  // "worker", "reference": what was certified
  int64_t max_context_tokens = 0;
  // What has to be served for the policy to hold, lower-case SHA-256 but for worker and build.
  struct Terms {
    std::string model_weights_sha256, config_sha256, tokenizer_sha256;
    std::string worker, build;
    std::string scales_sha256;     // empty without fixed scales
    std::string transform_sha256;  // of the key bias taken out; empty without
    bool operator==(const Terms&) const = default;
  } terms;
};

// Strict: a missing, unknown or mistyped field, or a tier, key, value or scale that is not what `arm` stores, is an
// Error{kBadInput} naming `origin` and the field. A policy is no seal: `gate verify` holds it against the run.
ServingPolicy serving_policy_from_json(const Json& json, std::string_view origin);
// The same of a file. A certificate.json beside it must be the one that the policy names.
ServingPolicy read_serving_policy(const std::filesystem::path& path);

// Refuses to serve under a policy that was made for something else: throws Error{kBadInput} naming `origin`, the field
// and both values. A policy expires with any of its terms: nothing is served on the strength of evidence about another
// build, model or scales file.
void require_policy_terms(const ServingPolicy& policy, const ServingPolicy::Terms& served, std::string_view origin);
// Refuses a context longer than the longest that the gate's retrieval panels tried (a policy that stores native keys
// and values serves any), and reads on another path than the certified one.
void require_policy_use(const ServingPolicy& policy, std::string_view path, int64_t context_tokens,
                        std::string_view origin);

}  // namespace asymkv
