#include "asymkv/gate/score.h"

#include <limits>

#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

using test::expect_error;

TEST(Numbers, CanonicalFormIgnoresHowPeopleWriteThem) {
  for (const char* text : {"1234.5", "$1,234.50", " 1,234.5", "01234.500"}) {
    EXPECT_EQ(canonical_number(text), "1234.5") << text;
  }
  for (const char* text : {"18", "18.", "18.00", "$18", " 18 dollars", "0018"}) {
    EXPECT_EQ(canonical_number(text), "18") << text;
  }
  EXPECT_EQ(canonical_number("-7"), "-7");
  EXPECT_EQ(canonical_number("-0"), "0");
  EXPECT_EQ(canonical_number("0.50"), "0.5");
  EXPECT_EQ(canonical_number("000"), "0");
  for (const char* text : {"", "$", "-", "abc", ".", ","}) EXPECT_EQ(canonical_number(text), "") << text;
}

TEST(Numbers, StrictTakesTheNumberAfterTheFirstMark) {
  EXPECT_EQ(parse_strict_answer(" 3 + 4 = 7.\n#### 7"), "7");
  EXPECT_EQ(parse_strict_answer("#### $1,000.\n#### 3"), "1000");
  EXPECT_EQ(parse_strict_answer("####-5"), "-5");
  EXPECT_EQ(parse_strict_answer("the answer is 7"), "");
  EXPECT_EQ(parse_strict_answer("####"), "");
  EXPECT_EQ(parse_strict_answer("#### seven 7"), "");
}

TEST(Numbers, FlexibleTakesTheLastNumber) {
  EXPECT_EQ(parse_flexible_answer("so 3 apples and 4 pears make 7."), "7");
  EXPECT_EQ(parse_flexible_answer("10-3"), "3");
  EXPECT_EQ(parse_flexible_answer("it is -3"), "-3");
  EXPECT_EQ(parse_flexible_answer("$1,234.00, not more"), "1234");
  EXPECT_EQ(parse_flexible_answer("none"), "");
  EXPECT_EQ(parse_flexible_answer(""), "");
}

TEST(Numbers, RetrievalNeedsTheWholeNumber) {
  EXPECT_EQ(parse_retrieval_answer("48213", "48213"), "48213");
  EXPECT_EQ(parse_retrieval_answer(" 4,829,173.", "4829173"), "4829173");
  EXPECT_EQ(parse_retrieval_answer("not 11111 but 48213.", "48213"), "48213");
  EXPECT_EQ(parse_retrieval_answer("148213", "48213"), "148213");
  EXPECT_EQ(parse_retrieval_answer("4821", "48213"), "4821");
  EXPECT_EQ(parse_retrieval_answer("unknown", "48213"), "");
}

Case math_case(const std::string& expected) {
  Case value;
  value.id = "math/0000";
  value.panel = "math";
  value.kind = PanelKind::kMath;
  value.context = "Question: ...\nAnswer:";
  value.expected = expected;
  return value;
}

TEST(Score, MathReportsBothParsers) {
  RawOutcome raw;
  raw.arm = ArmId::kSD;
  raw.text = "It is 12.\n#### 14";
  raw.tokens = 9;
  Outcome strict = score_outcome(math_case("14"), raw, AnswerParser::kStrict);
  EXPECT_TRUE(strict.correct);
  EXPECT_EQ(strict.arm, ArmId::kSD);
  raw.text = "so 14.";
  raw.truncated = true;
  strict = score_outcome(math_case("14"), raw, AnswerParser::kStrict);
  EXPECT_FALSE(strict.correct);
  EXPECT_TRUE(strict.alt_correct);
  EXPECT_EQ(strict.alt_parsed, "14");
  EXPECT_TRUE(strict.truncated);
  EXPECT_FALSE(strict.failed);
  const Outcome flexible = score_outcome(math_case("14"), raw, AnswerParser::kFlexible);
  EXPECT_TRUE(flexible.correct);
  EXPECT_FALSE(flexible.alt_correct);
}

TEST(Score, FailedIsNotWrong) {
  RawOutcome raw;
  raw.failure = "non-finite logit";
  raw.text = "#### 14";
  const Outcome outcome = score_outcome(math_case("14"), raw, AnswerParser::kStrict);
  EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcome.failure, "non-finite logit");
  EXPECT_FALSE(outcome.correct);
  EXPECT_EQ(outcome.text, "");
}

TEST(Score, TextIsStoredAsValidUtf8AndParsedAsStored) {
  RawOutcome raw;
  raw.text = "\xff\xfe #### 14\xc3";
  const Outcome outcome = score_outcome(math_case("14"), raw, AnswerParser::kStrict);
  EXPECT_TRUE(outcome.correct);
  const Outcome again = outcome_from_json(parse_json(canonical_json(outcome_to_json(outcome)), "x"), "x");
  EXPECT_EQ(again, outcome);
  EXPECT_EQ(rescore_outcome(math_case("14"), again, AnswerParser::kStrict), outcome);
  EXPECT_NE(rescore_outcome(math_case("15"), again, AnswerParser::kStrict), outcome);
}

TEST(Score, LossChecksTheRunner) {
  Case asked;
  asked.id = "loss-1024/0000";
  asked.panel = "loss-1024";
  asked.kind = PanelKind::kLoss;
  asked.context = "text";
  asked.length = 1024;
  asked.scored_tokens = 512;
  RawOutcome raw;
  raw.nll = 1.25;
  raw.scored_tokens = 512;
  EXPECT_EQ(score_outcome(asked, raw, AnswerParser::kStrict).nll, 1.25);
  raw.scored_tokens = 511;
  expect_error([&] { score_outcome(asked, raw, AnswerParser::kStrict); }, ErrorCode::kInternal, "511 tokens scored");
  raw.scored_tokens = 512;
  raw.nll = std::numeric_limits<double>::quiet_NaN();
  expect_error([&] { score_outcome(asked, raw, AnswerParser::kStrict); }, ErrorCode::kInternal, "mean loss nan");
}

Outcome good_outcome() {
  Outcome value;
  value.case_id = "math/0000";
  value.panel = "math";
  value.arm = ArmId::kAD;
  value.text = "#### 3\n\"quoted\" \xe2\x82\xac";
  value.parsed = "3";
  value.correct = true;
  value.tokens = 5;
  return value;
}

TEST(OutcomeFile, RoundTripsAndNamesFileAndLine) {
  const test::TempFolder folder;
  Outcome second = good_outcome();
  second.case_id = "math/0001";
  const std::string a = canonical_json(outcome_to_json(good_outcome())), b = canonical_json(outcome_to_json(second));
  const auto path = folder.write("AD.jsonl", a + "\n" + b + "\n");
  EXPECT_THAT(read_outcomes(path, ArmId::kAD), testing::ElementsAre(good_outcome(), second));
  const auto refuse = [&](const std::string& text, std::string_view words) {
    folder.write("AD.jsonl", text);
    expect_error([&] { read_outcomes(path, ArmId::kAD); }, ErrorCode::kBadInput, words);
  };
  refuse(a + "\n" + a + "\n", "AD.jsonl:2: case math/0000 is repeated");
  refuse(a + "\n" + b, "AD.jsonl:2: the last line has no newline");
  refuse(a + "\n\n" + b + "\n", "AD.jsonl:2: the line is empty");
  refuse(a + "\n" + b.substr(0, 20) + "\n", "AD.jsonl:2 is not valid JSON");
  refuse(a + "\n[]\n", "AD.jsonl:2 must be a JSON object, found array");
  folder.write("AD.jsonl", a + "\n");
  expect_error([&] { read_outcomes(path, ArmId::kSD); }, ErrorCode::kBadInput,
               "AD.jsonl:1: the line belongs to arm AD, but the file to SD");
}

TEST(OutcomeFile, BrokenFieldsAreNamed) {
  const auto refuse = [](const std::string& field, const Json& value, std::string_view words) {
    Json json = outcome_to_json(good_outcome());
    json[field] = value;
    SCOPED_TRACE(field);
    expect_error([&] { outcome_from_json(json, "SD.jsonl:7"); }, ErrorCode::kBadInput, words);
  };
  refuse("arm", "XX", "SD.jsonl:7: field \"arm\" unknown arm \"XX\"");
  refuse("arm", 3, "field \"arm\" must be a string");
  refuse("case_id", "", "field \"case_id\" is empty");
  refuse("correct", "yes", "field \"correct\" must be true or false");
  refuse("parsed", "", "field \"correct\" is true without a parsed answer");
  refuse("alt_correct", true, "field \"alt_correct\" is true without a parsed answer");
  refuse("failed", true, "field \"failure\" must be given exactly where failed is true");
  refuse("failure", "lost", "field \"failure\" must be given exactly where failed is true");
  refuse("tokens", -1, "field \"tokens\" is negative");
  refuse("tokens", 1.5, "field \"tokens\" must be an integer");
  refuse("nll", -0.5, "field \"nll\" must be finite and not negative");
  refuse("nll", 1.5, "field \"nll\" is given without scored tokens");
  refuse("nll", nullptr, "field \"nll\" must be a number");
  refuse("time", 12, "unknown field \"time\"");
  Json json = outcome_to_json(good_outcome());
  json.erase("truncated");
  expect_error([&] { outcome_from_json(json, "x:1"); }, ErrorCode::kBadInput, "x:1: field \"truncated\" is missing");
}

}  // namespace
}  // namespace asymkv
