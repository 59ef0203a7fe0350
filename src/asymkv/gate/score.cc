#include "asymkv/gate/score.h"

#include <cmath>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::string_view kGoldMark = "####";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A number that begins at `at`: an optional minus sign, digits with thousands separators, an optional fraction. Empty
// if no digit follows. A final point or comma belongs to the sentence, not to the number.
std::string_view number_at(std::string_view text, size_t at) {
  size_t i = at;
  if (i < text.size() && text[i] == '-') ++i;
  if (i >= text.size() || !is_digit(text[i])) return {};
  bool point = false;
  size_t end = i;
  for (; i < text.size(); ++i) {
    if (is_digit(text[i])) {
      end = i + 1;
    } else if (text[i] == '.' && !point) {
      point = true;
    } else if (text[i] != ',' || point) {
      break;
    } else if (i + 1 >= text.size() || !is_digit(text[i + 1])) {
      break;
    }
  }
  return text.substr(at, end - at);
}

std::vector<std::string_view> numbers_in(std::string_view text) {
  std::vector<std::string_view> numbers;
  for (size_t i = 0; i < text.size();) {
    // "7-3" is two numbers, not 7 and -3.
    const bool minus = text[i] == '-' && (i == 0 || !is_digit(text[i - 1]));
    const std::string_view number = minus || is_digit(text[i]) ? number_at(text, i) : std::string_view();
    if (!number.empty()) numbers.push_back(number);
    i += number.empty() ? 1 : number.size();
  }
  return numbers;
}

// A digit run without what people put between thousands.
std::string plain_digits(std::string_view number) {
  std::string digits;
  for (const char c : number) {
    if (c != ',') digits += c;
  }
  return digits;
}

// Valid UTF-8: what a JSON file gives back.
std::string as_stored(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

void score_math(const Case& asked, AnswerParser deciding, Outcome& outcome) {
  const std::string gold = canonical_number(asked.expected);
  const std::string strict = parse_strict_answer(outcome.text), flexible = parse_flexible_answer(outcome.text);
  outcome.parsed = deciding == AnswerParser::kStrict ? strict : flexible;
  outcome.alt_parsed = deciding == AnswerParser::kStrict ? flexible : strict;
  outcome.correct = !gold.empty() && outcome.parsed == gold;
  outcome.alt_correct = !gold.empty() && outcome.alt_parsed == gold;
}

void score_loss(const Case& asked, const RawOutcome& raw, Outcome& outcome) {
  ASYMKV_CHECK(raw.scored_tokens == asked.scored_tokens, "case {} arm {}: {} tokens scored, {} asked for", asked.id,
               arm_name(raw.arm), raw.scored_tokens, asked.scored_tokens);
  ASYMKV_CHECK(std::isfinite(raw.nll) && raw.nll >= 0.0, "case {} arm {}: mean loss {}", asked.id, arm_name(raw.arm),
               raw.nll);
  outcome.nll = raw.nll;
  outcome.scored_tokens = raw.scored_tokens;
}

}  // namespace

std::string canonical_number(std::string_view text) {
  const size_t begin = text.find_first_not_of(" $");
  if (begin == std::string_view::npos) return {};
  const std::string_view number = number_at(text, begin);
  if (number.empty()) return {};
  std::string result = plain_digits(number);
  if (const size_t point = result.find('.'); point != std::string::npos) {
    const size_t last = result.find_last_not_of('0');
    result.resize(last == point ? point : last + 1);
  }
  const size_t sign = result.front() == '-' ? 1 : 0;
  const size_t point = std::min(result.find('.'), result.size());
  size_t zeros = sign;
  while (zeros + 1 < point && result[zeros] == '0') ++zeros;
  result.erase(sign, zeros - sign);
  return result == "-0" ? "0" : result;
}

std::string parse_strict_answer(std::string_view text) {
  const size_t mark = text.find(kGoldMark);
  return mark == std::string_view::npos ? std::string() : canonical_number(text.substr(mark + kGoldMark.size()));
}

std::string parse_flexible_answer(std::string_view text) {
  const auto numbers = numbers_in(text);
  return numbers.empty() ? std::string() : canonical_number(numbers.back());
}

std::string parse_retrieval_answer(std::string_view text, std::string_view expected) {
  std::string first;
  for (const std::string_view number : numbers_in(text)) {
    const std::string digits = plain_digits(number);
    if (digits == expected) return digits;
    if (first.empty()) first = digits;
  }
  return first;
}

Outcome score_outcome(const Case& asked, const RawOutcome& raw, AnswerParser deciding) {
  Outcome outcome;
  outcome.case_id = asked.id;
  outcome.panel = asked.panel;
  outcome.arm = raw.arm;
  outcome.failed = !raw.failure.empty();
  outcome.failure = as_stored(raw.failure);
  if (outcome.failed) return outcome;
  if (asked.kind == PanelKind::kLoss) {
    score_loss(asked, raw, outcome);
    return outcome;
  }
  ASYMKV_CHECK(raw.tokens >= 0, "case {} arm {}: {} tokens", asked.id, arm_name(raw.arm), raw.tokens);
  outcome.text = as_stored(raw.text);
  outcome.tokens = raw.tokens;
  outcome.truncated = raw.truncated;
  if (asked.kind == PanelKind::kMath) {
    score_math(asked, deciding, outcome);
  } else {
    outcome.parsed = parse_retrieval_answer(outcome.text, asked.expected);
    outcome.correct = outcome.parsed == asked.expected;
  }
  return outcome;
}

Outcome rescore_outcome(const Case& asked, const Outcome& stored, AnswerParser deciding) {
  RawOutcome raw;
  raw.arm = stored.arm;
  raw.failure = stored.failure;
  raw.text = stored.text;
  raw.tokens = stored.tokens;
  raw.truncated = stored.truncated;
  raw.nll = stored.nll;
  raw.scored_tokens = stored.scored_tokens;
  return score_outcome(asked, raw, deciding);
}

}  // namespace asymkv
