#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "asymkv/model/tokenizer/definition.h"

namespace asymkv::tokenizer {

// Every `from` (not empty) in the text, left to right, becomes `to`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// The text, which must be well-formed UTF-8, after all steps.
std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text);

}  // namespace asymkv::tokenizer
