#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "asymkv/gate/case.h"
#include "asymkv/gate/protocol.h"

namespace asymkv {

// Files that the user names; only those that the protocol asks for are read.
struct CaseFiles {
  std::filesystem::path math_questions;           // GSM8K test.jsonl
  std::filesystem::path math_few_shot;            // GSM8K train.jsonl
  std::vector<std::filesystem::path> loss_texts;  // UTF-8 text
  std::filesystem::path filler;                   // UTF-8 text for retrieval
};

// Tokens of a text, without BOS. Must grow with the text (a longer prefix never has fewer tokens by more than one).
using CountTokens = std::function<int64_t(std::string_view text)>;

// What the generators need to know about the model's tokenizer.
struct CaseTokenizer {
  CountTokens count;
  bool has_bos = false;  // a BOS is put before the context, and counts into Case::length
  // What the model's chat template makes of one user's message that begins with `begin`: the text before the rest of
  // the message, and the text after it. Throws Error{kUnsupported} naming a model without a template.
  std::function<std::pair<std::string, std::string>(const std::string& begin)> chat_frame = nullptr;
};

// Fills in the SHA-256 of every file a panel uses, or checks the one the protocol names. Throws Error{kUsage} for a
// file that was not named and Error{kBadInput} for one with other bytes than the protocol asks for.
Protocol resolve_data(const Protocol& protocol, const CaseFiles& files);

// Every case of the protocol as it is asked: look by look, in panel order (retrieval, math, loss). Deterministic.
// `protocol` is resolved.
std::vector<Case> make_cases(const Protocol& protocol, const CaseFiles& files, const CaseTokenizer& tokenizer);

}  // namespace asymkv
