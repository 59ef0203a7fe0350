#include "asymkv/gate/policy_mode.h"

#include "asymkv/base/error.h"

namespace asymkv {

std::string_view policy_mode_name(PolicyMode mode) {
  return mode == PolicyMode::kKnee ? "knee" : "certified";
}

PolicyMode parse_policy_mode(std::string_view text) {
  if (text == "knee") return PolicyMode::kKnee;
  if (text == "certified") return PolicyMode::kCertified;
  throw_usage("unknown policy mode \"{}\"; known: knee, certified", text);
}

}  // namespace asymkv
