#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/engine/loaded_model.h"
#include "asymkv/gate/cases.h"

namespace asymkv::app {

// Token ids of texts of a protocol's kind that are not among its cases (the same generators under another seed), for
// calibration and the probe. Empty where the protocol's texts come from files alone.
std::vector<std::vector<int32_t>> make_side_documents(const LoadedModel& model, const Protocol& protocol,
                                                      const CaseFiles& files, uint64_t seed_offset);

// The first max_documents documents of a text, each of max_tokens tokens (the last may be shorter) and each beginning
// as the tokenizer begins a text. Throws Error{kBadInput} naming `origin` for a text without a token.
std::vector<std::vector<int32_t>> cut_documents(const LoadedModel& model, const std::string& text, int64_t max_tokens,
                                                int64_t max_documents, const std::string& origin);

// The case tokenizer of a model.
CaseTokenizer case_tokenizer(const LoadedModel& model);

}  // namespace asymkv::app
