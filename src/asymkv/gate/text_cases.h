#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/gate/cases.h"

namespace asymkv {

// Cases of any tokenizer, made from plain text.

// A whole file. Throws Error{kBadInput} naming it if it cannot be read or is not UTF-8.
std::string read_utf8_text(const std::filesystem::path& path);

// Text cut after sentence ends (". ", "! ", "? ", a newline), white space kept, so that the pieces put together give
// the text again.
std::vector<std::string> split_sentences(std::string_view text);

// A number among distractors: "The access number of the Lisbon archive is 4829173." hidden in neutral sentences, asked
// for at the end. `filler` is what surrounds it, as sentences; each case begins somewhere else in it. The prompt is as
// long as whole sentences allow without exceeding panel.length tokens. Throws Error{kBadInput} naming `origin` where
// the filler is too short.
std::vector<Case> make_generic_retrieval(const RetrievalPanel& panel, uint64_t seed, const CaseTokenizer& tokenizer,
                                         const std::vector<std::string>& filler, const std::string& origin);

// Consecutive documents of at least panel.document_tokens tokens (BOS included), cut at white space; they do not
// overlap. Several files give documents in turn, each from its start. Throws Error{kBadInput} where all files together
// hold too few.
std::vector<Case> make_text_loss(const LossPanel& panel, const CaseTokenizer& tokenizer,
                                 const std::vector<std::filesystem::path>& files);

}  // namespace asymkv
