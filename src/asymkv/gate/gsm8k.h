#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace asymkv {

// One line of a GSM8K file: {"question": ..., "answer": "...\n#### 18"}.
struct Gsm8kRow {
  std::string question;
  std::string solution;  // the worked answer without its <<calculator>> notes, "#### 18" included
  std::string gold;      // the number after ####, in canonical form
};

// The first `count` rows. Throws Error{kBadInput} naming file and line for a malformed row, and the file where it has
// fewer rows.
std::vector<Gsm8kRow> read_gsm8k(const std::filesystem::path& path, int64_t count);

// "Question: ...\nAnswer: ...\n\n" for each row: the examples before a question.
std::string gsm8k_few_shot(const std::vector<Gsm8kRow>& rows);
// What a user's message says before the question, where a chat template asks it.
inline constexpr std::string_view kGsm8kInstruction =
    "Solve this problem step by step. End with a last line that holds only \"#### \" and the answer as a number.\n\n";
// "Question: ...\nAnswer:"
std::string gsm8k_prompt(const Gsm8kRow& row);

}  // namespace asymkv
