#include "asymkv/model/tokenizer/normalizer.h"

#include "asymkv/model/tokenizer/nfc.h"

namespace asymkv::tokenizer {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, begin)) {
    out.append(text.substr(begin, found - begin)).append(to);
    begin = found + from.size();
  }
  return out.append(text.substr(begin));
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string normalized(text);
  for (const NormalizerStep step : steps) {
    switch (step) {
      case NormalizerStep::kNfc:
        normalized = normalize_nfc(normalized);
        break;
      case NormalizerStep::kPrependMark:
        if (!normalized.empty()) normalized.insert(0, kSpaceMark);
        break;
      case NormalizerStep::kMarkSpaces:
        normalized = replace_all(normalized, " ", kSpaceMark);
        break;
    }
  }
  return normalized;
}

}  // namespace asymkv::tokenizer
