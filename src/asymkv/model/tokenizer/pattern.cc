#include "asymkv/model/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"

namespace asymkv::tokenizer {
namespace {

// Longest published pattern is under 1 KB.
constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr size_t kJitStackStartBytes = 64 * 1024;
constexpr size_t kJitStackMaxBytes = 8 * 1024 * 1024;
// Backtracking allowed in one match: some, plus what a pattern needs that gives back a long run one by one.
constexpr size_t kMatchLimitBase = 200'000;
constexpr size_t kMatchLimitPerByte = 4;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return std::string(reinterpret_cast<const char*>(text.data()));
}

const pcre2_code* as_code(const std::shared_ptr<void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

Pattern::Pattern(std::string_view pattern, unsigned options, std::string_view field) : field_(field) {
  if (pattern.empty()) throw_bad_input("{}: the pattern is empty", field);
  if (pattern.size() > kMaxPatternBytes) {
    throw_unsupported("{}: the pattern has {} bytes, at most {} are supported", field, pattern.size(),
                      kMaxPatternBytes);
  }
  if (find_invalid_utf8(pattern) != std::string_view::npos) throw_bad_input("{}: the pattern is not UTF-8", field);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  ASYMKV_CHECK(context, "pcre2_compile_context_create returned null");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what '.' does not match in Oniguruma
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | options,
                                   &error, &offset, context.get());
  if (code == nullptr) throw_bad_input("{}: the pattern is malformed: {}", field, pcre2_message(error));
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // A build of PCRE2 without JIT, or a machine that forbids it, matches with the interpreter: same result, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

Pattern Pattern::regex(std::string_view pattern, std::string_view field) {
  return Pattern(translate_pattern(pattern, field), PCRE2_UCP, field);
}

Pattern Pattern::literal(std::string_view text, std::string_view field) {
  return Pattern(text, PCRE2_LITERAL, field);
}

struct Matcher::Memory {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Memory() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Matcher::Matcher() : memory_(std::make_unique<Memory>()) {
  memory_->data = pcre2_match_data_create(1, nullptr);
  memory_->context = pcre2_match_context_create(nullptr);
  ASYMKV_CHECK(memory_->data != nullptr && memory_->context != nullptr, "PCRE2 found no memory");
  memory_->stack = pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr);  // null without JIT
  if (memory_->stack != nullptr) pcre2_jit_stack_assign(memory_->context, nullptr, memory_->stack);
}

Matcher::~Matcher() = default;

std::optional<Match> Matcher::find(const Pattern& pattern, std::string_view subject, size_t start) {
  const size_t limit = kMatchLimitBase + kMatchLimitPerByte * subject.size();
  constexpr size_t kHighest = std::numeric_limits<uint32_t>::max();
  pcre2_set_match_limit(memory_->context, static_cast<uint32_t>(std::min(limit, kHighest)));
  // The caller has checked the text; checking it again on every call would be quadratic.
  const int rc = pcre2_match(as_code(pattern.code_), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                             start, PCRE2_NO_UTF_CHECK, memory_->data, memory_->context);
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) throw_bad_input("{}: the pattern cannot be matched: {}", pattern.field_, pcre2_message(rc));
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory_->data);
  return Match{bounds[0], bounds[1]};
}

}  // namespace asymkv::tokenizer
