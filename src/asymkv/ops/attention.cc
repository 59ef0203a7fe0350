#include "asymkv/ops/attention.h"

namespace asymkv {

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kWrite:
      return "write";
    case Phase::kDecode:
      return "decode";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kMixed:
      return "mixed";
  }
  return "?";
}

}  // namespace asymkv
