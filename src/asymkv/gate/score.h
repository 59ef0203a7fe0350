#pragma once

#include <string>
#include <string_view>

#include "asymkv/gate/case.h"
#include "asymkv/gate/outcome.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/gate/runner.h"

namespace asymkv {

// Number after the first "####" of an answer, in canonical form; empty if there is none.
std::string parse_strict_answer(std::string_view text);
// Last number of a text, in canonical form; empty if there is none.
std::string parse_flexible_answer(std::string_view text);
// Canonical form of a number as people write it: "$1,234.50" and "1234.5" agree. Empty if it is no number.
std::string canonical_number(std::string_view text);
// Retrieval: `expected` if a number of exactly these digits stands in the text (thousands separators allowed), else the
// first number, else empty.
std::string parse_retrieval_answer(std::string_view text, std::string_view expected);

// Judges raw text with the protocol's parsers. The stored text is valid UTF-8 (other bytes become U+FFFD), and the
// answer is parsed from the text as stored, so `gate verify` finds the same. Throws Error{kInternal} for a raw outcome
// that breaks the contract of CaseRunner.
Outcome score_outcome(const Case& asked, const RawOutcome& raw, AnswerParser deciding);

// The outcome that the stored raw text gives when judged again: equal to `stored` unless somebody changed the file or
// the parsers.
Outcome rescore_outcome(const Case& asked, const Outcome& stored, AnswerParser deciding);

}  // namespace asymkv
