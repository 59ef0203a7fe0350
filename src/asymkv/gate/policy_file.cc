#include "asymkv/gate/policy_file.h"

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/gate/run_files.h"

namespace asymkv {
namespace {

void refuse(std::string_view origin, std::string_view field, std::string_view made_for, std::string_view served) {
  if (made_for == served) return;
  throw_bad_input("{}: field \"{}\": the policy was made for \"{}\", but \"{}\" is to be served: admit the model again",
                  origin, field, made_for, served);
}

Tier tier_of(const JsonFields& fields, ArmId arm) {
  switch (arm) {
    case ArmId::kN:
      return Tier::kNative;
    case ArmId::kAF:
    case ArmId::kAD:
      return Tier::kK16V8;
    case ArmId::kSF:
    case ArmId::kSD:
      return Tier::kK8V8;
    default:
      fields.fail("arm", "is not one that a policy chooses");
  }
}

// Tier, key, value and scale all follow from the arm (and from the model's native type, which the key names where it is
// stored so).
void require_agreement(const JsonFields& fields, const ServingPolicy& policy) {
  const auto require = [&](const char* field, std::string_view found, std::string_view expected) {
    if (found != expected)
      fields.fail(field, fmt::format("is \"{}\", but arm {} stores \"{}\"", found, arm_name(policy.arm), expected));
  };
  require("tier", tier_name(policy.tier), tier_name(tier_of(fields, policy.arm)));
  DType native = DType::kBF16;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    if (policy.key == dtype_name(dtype)) native = dtype;
  }
  const KvFormat format = arm_format(policy.arm, native);
  require("key", policy.key, format.key.id());
  require("value", policy.value, format.value.id());
  require("scale", policy.scale, scale_kind_name(format.scale()));
}

}  // namespace

ServingPolicy serving_policy_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  if (fields.text("schema") != kPolicySchema) fields.fail("schema", fmt::format("must be \"{}\"", kPolicySchema));
  ServingPolicy policy;
  policy.tier = fields.parsed("tier", fields.text("tier"), parse_tier);
  policy.arm = fields.parsed("arm", fields.text("arm"), parse_arm);
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
  for (const char* field : {"mode", "needed_cases", "capacity_options", "certificate_sha256", "expires"}) {
    fields.raw(field);
  }
  fields.finish();
  require_agreement(fields, policy);
  return policy;
}

ServingPolicy read_serving_policy(const std::filesystem::path& path) {
  const Json json = read_json_file(path);
  ServingPolicy policy = serving_policy_from_json(json, path.string());
  const std::filesystem::path certificate = path.parent_path() / run_files::kCertificate;
  if (std::filesystem::exists(certificate) && sha256_file_hex(certificate) != json.at("certificate_sha256")) {
    throw_bad_input(
        "{}: field \"certificate_sha256\" names another certificate than the {} beside it: asymkv gate "
        "verify {} says what was changed",
        path.string(), run_files::kCertificate, path.parent_path().string());
  }
  return policy;
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
      "{}: field \"max_context_tokens\" is {}, but {} tokens are asked for: ask for fewer (a shorter prompt, a smaller "
      "context), or admit the model with a protocol of longer retrieval panels",
      origin, policy.max_context_tokens, context_tokens);
}

}  // namespace asymkv
