#pragma once

#include <cstdint>
#include <vector>

#include "asymkv/gate/cases.h"

namespace asymkv {

// Cases for the embedded byte-level models. One byte is one token, and a BOS comes first.

// Length is exact: BOS, context, question and the five digits are panel.length tokens.
std::vector<Case> make_embedded_retrieval(const RetrievalPanel& panel, uint64_t seed);
// Distinct word problems.
std::vector<Case> make_embedded_math(const MathPanel& panel, uint64_t seed);
// Filler text of exactly panel.document_tokens tokens, BOS included.
std::vector<Case> make_embedded_loss(const LossPanel& panel, uint64_t seed);

// Throws Error{kUnsupported} unless the tokenizer is byte-level with a BOS, judged on `cases` of a builtin source.
void require_byte_tokenizer(const CaseTokenizer& tokenizer, const std::vector<Case>& cases);

}  // namespace asymkv
