#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"

namespace asymkv {

enum class PanelKind : uint8_t { kRetrieval, kMath, kLoss };
std::string_view panel_kind_name(PanelKind kind);  // "retrieval", "math", "loss"
// Throws Error{kBadInput} naming `origin`.
PanelKind parse_panel_kind(std::string_view name, std::string_view origin);

// One question, document or needle. Texts are tokenised one by one (context, then question, no special token between
// them); the tokenizer's BOS, where the model has one, comes before the context.
struct Case {
  std::string id;     // unique in a run: "retrieval-1024/0007"
  std::string panel;  // "retrieval-1024", "math", "loss-1024"
  PanelKind kind = PanelKind::kRetrieval;
  std::string context;   // prefilled as one chunk, never empty. Loss: the whole document
  std::string question;  // the next chunk; empty where the context is the whole prompt
  std::string expected;  // retrieval: the digits; math: the number; empty for loss
  double depth = 0;      // retrieval: where the needle starts, as a share of the context, 0 to 1
  int64_t length = 0;    // retrieval: tokens of BOS, context, question and answer. Loss: tokens kept. Math: 0
  // Loss: the last `scored_tokens` of the `length` tokens are scored, each as the target of the one before it.
  int64_t scored_tokens = 0;
  // Math by chat: a chat template wrote the texts. Special tokens that they spell are control tokens then, but for the
  // first `user_bytes` bytes of `question`, which are a user's and stay text; and no BOS is added.
  std::optional<int64_t> user_bytes;

  bool operator==(const Case&) const = default;
};

Json case_to_json(const Case& value);
// Strict: a missing, unknown or mistyped field is an Error{kBadInput} that names `origin` (file:line) and the field.
Case case_from_json(const Json& json, std::string_view origin);

// cases.jsonl: one canonical JSON line a case.
std::string cases_to_jsonl(std::span<const Case> cases);
// Throws Error{kBadInput} naming file and line; also for a repeated id, an empty file and a torn last line.
std::vector<Case> read_cases(const std::filesystem::path& path);

}  // namespace asymkv
