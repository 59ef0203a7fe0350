#include "asymkv/gate/policy_file.h"

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"

namespace asymkv {
namespace {

void refuse(std::string_view origin, std::string_view field, std::string_view made_for, std::string_view served) {
  if (made_for == served) return;
  throw_bad_input("{}: field \"{}\": the policy was made for \"{}\", but \"{}\" is to be served: admit the model again",
                  origin, field, made_for, served);
}

}  // namespace

ServingPolicy serving_policy_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  if (fields.text("schema") != kPolicySchema) fields.fail("schema", fmt::format("must be \"{}\"", kPolicySchema));
  ServingPolicy policy;
  policy.tier = fields.parsed("tier", fields.text("tier"), parse_tier);
  policy.key = fields.text("key");
  policy.value = fields.text("value");
  policy.scale = fields.text("scale");
  policy.certified = fields.boolean("certified");
  policy.reason = fields.text("reason");
  policy.path = fields.text("path");
  policy.max_context_tokens = fields.integer("max_context_tokens");
  policy.terms = {fields.text("model_weights_sha256"),
                  fields.text("config_sha256"),
                  fields.text("tokenizer_sha256"),
                  fields.text("worker"),
                  fields.text("build"),
                  fields.text("scales_sha256"),
                  fields.text("transform_sha256")};
  // For people and for the planner; nothing is decided by them here.
  for (const char* field : {"arm", "mode", "needed_cases", "capacity_options", "certificate_sha256", "expires"}) {
    fields.raw(field);
  }
  fields.finish();
  return policy;
}

ServingPolicy read_serving_policy(const std::filesystem::path& path) {
  return serving_policy_from_json(read_json_file(path), path.string());
}

void require_policy_terms(const ServingPolicy& policy, const ServingPolicy::Terms& served, std::string_view origin) {
  const ServingPolicy::Terms& made_for = policy.terms;
  refuse(origin, "model_weights_sha256", made_for.model_weights_sha256, served.model_weights_sha256);
  refuse(origin, "config_sha256", made_for.config_sha256, served.config_sha256);
  refuse(origin, "tokenizer_sha256", made_for.tokenizer_sha256, served.tokenizer_sha256);
  refuse(origin, "worker", made_for.worker, served.worker);
  refuse(origin, "build", made_for.build, served.build);
  refuse(origin, "scales_sha256", made_for.scales_sha256, served.scales_sha256);
  refuse(origin, "transform_sha256", made_for.transform_sha256, served.transform_sha256);
}

void require_policy_use(const ServingPolicy& policy, std::string_view path, int64_t context_tokens,
                        std::string_view origin) {
  refuse(origin, "path", policy.path, path);
  if (policy.tier == Tier::kNative || context_tokens <= policy.max_context_tokens) return;
  throw_bad_input(
      "{}: field \"max_context_tokens\" is {}, but {} tokens are asked for: shorten the prompt, or admit the model "
      "with "
      "a protocol of longer retrieval panels",
      origin, policy.max_context_tokens, context_tokens);
}

}  // namespace asymkv
