#include "served_policy.h"

#include <algorithm>

#include "asymkv/engine/scales.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/kv/key_transform.h"
#include "run_record.h"

namespace asymkv::app {

void ServedPolicy::add_option(CLI::App& command) {
  command
      .add_option("--policy", file_,
                  "policy.json of an admission run: store what it chose, refuse what it was not made for")
      ->excludes(command.get_option("--kv"))
      ->excludes(command.get_option("--scale"));
}

void ServedPolicy::apply(KvOptions& kv) {
  if (file_.empty()) return;
  policy_ = read_serving_policy(file_);
  kv.kv = policy_->key + "/" + policy_->value;
  if (policy_->scale == "fixed") kv.scale = (file_.parent_path() / run_files::kScales).string();
}

int64_t ServedPolicy::most_context_tokens(int64_t most) const {
  return policy_ && policy_->tier != Tier::kNative ? std::min(most, policy_->max_context_tokens) : most;
}

void ServedPolicy::require(const LoadedModel& model, const KvCache& cache, std::string_view path,
                           int64_t context_tokens) const {
  if (!policy_) return;
  ServingPolicy::Terms served;
  served.model_weights_sha256 = model.files.weights_sha256();
  served.config_sha256 = model.files.config_sha256;
  served.tokenizer_sha256 = model.tokenizer.sha256();
  served.worker = worker_name(model.decoder.backends());
  served.build = build_id();
  if (policy_->scale == "fixed") served.scales_sha256 = scales_sha256(cache.config().scale_source);
  if (!policy_->terms.transform_sha256.empty()) {
    served.transform_sha256 = key_transforms_sha256(cache.config().transforms);
  }
  require_policy_terms(*policy_, served, file_.string());
  require_policy_use(*policy_, path, context_tokens, file_.string());
}

}  // namespace asymkv::app
