#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace asymkv::tokenizer {

// Rewrites a pattern of Oniguruma's Ruby dialect, in which published tokenizers are written, for PCRE2 with the same
// meaning: the character types \s \d \w are spelled out because the two libraries disagree on U+180E and others.
// Only constructs whose meaning is known to agree pass: literals, classes without set operations, alternation,
// groups (capturing, (?:), (?i:), atomic, look-around), quantifiers, \p{..}, \r \n \t \v \f \e \x \u, escaped signs.
// Anything else is Error{kUnsupported} naming `field` and the construct.
std::string translate_pattern(std::string_view pattern, std::string_view field);

struct Match {
  size_t begin, end;  // bytes
};

// A compiled pattern, machine code where PCRE2's JIT is available. Immutable; shared between threads.
class Pattern {
 public:
  // Throw Error{kBadInput} or Error{kUnsupported} naming `field`.
  static Pattern regex(std::string_view pattern, std::string_view field);
  static Pattern literal(std::string_view text, std::string_view field);

 private:
  friend class Matcher;
  Pattern(std::string_view pattern, unsigned options, std::string_view field);
  std::shared_ptr<void> code_;
  std::string field_;
};

// The memory one thread needs to match. Not shared between threads.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // First match at or after byte `start` of well-formed UTF-8; look-behind sees the text before it.
  // Throws Error{kBadInput} naming the pattern's field when it backtracks without bound.
  std::optional<Match> find(const Pattern& pattern, std::string_view subject, size_t start);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace asymkv::tokenizer
