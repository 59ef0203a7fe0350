#include "asymkv/gate/gsm8k.h"

#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/json.h"
#include "asymkv/gate/score.h"

namespace asymkv {
namespace {

// "5*3=<<5*3=15>>15" -> "5*3=15".
std::string without_calculator_notes(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t open = text.find("<<");
    const size_t close = open == std::string_view::npos ? open : text.find(">>", open);
    if (close == std::string_view::npos) break;
    result += text.substr(0, open);
    text.remove_prefix(close + 2);
  }
  return result += text;
}

Gsm8kRow parse_row(const Json& json, const std::string& origin) {
  Gsm8kRow row;
  row.question = require_string(json, "question", origin);
  row.solution = without_calculator_notes(require_string(json, "answer", origin));
  row.gold = parse_strict_answer(row.solution);
  if (row.question.empty()) throw_bad_input("{}: field \"question\" is empty", origin);
  if (row.gold.empty()) throw_bad_input("{}: field \"answer\" has no number after ####", origin);
  return row;
}

}  // namespace

std::vector<Gsm8kRow> read_gsm8k(const std::filesystem::path& path, int64_t count) {
  const std::string text = read_text_file(path);
  std::vector<Gsm8kRow> rows;
  size_t begin = 0;
  while (begin < text.size() && std::ssize(rows) < count) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string origin = fmt::format("{}:{}", path.string(), rows.size() + 1);
    rows.push_back(parse_row(parse_json(std::string_view(text).substr(begin, end - begin), origin), origin));
    begin = end + 1;
  }
  if (std::ssize(rows) < count) {
    throw_bad_input("{} holds {} questions, but the protocol asks for {}", path.string(), rows.size(), count);
  }
  return rows;
}

std::string gsm8k_few_shot(const std::vector<Gsm8kRow>& rows) {
  std::string text;
  for (const Gsm8kRow& row : rows) text += fmt::format("Question: {}\nAnswer: {}\n\n", row.question, row.solution);
  return text;
}

std::string gsm8k_prompt(const Gsm8kRow& row) {
  return fmt::format("Question: {}\nAnswer:", row.question);
}

}  // namespace asymkv
