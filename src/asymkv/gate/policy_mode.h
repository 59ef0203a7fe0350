#pragma once

#include <cstdint>
#include <string_view>

namespace asymkv {

// knee: without a certificate, fragile keys with unharmed values still get K16/V8, marked as not certified.
// certified: nothing is chosen without a certificate.
enum class PolicyMode : uint8_t { kKnee, kCertified };
std::string_view policy_mode_name(PolicyMode mode);  // "knee", "certified"
// Throws Error{kUsage} with the known names.
PolicyMode parse_policy_mode(std::string_view text);

}  // namespace asymkv
