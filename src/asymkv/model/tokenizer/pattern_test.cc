#include "asymkv/model/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/byte_level.h"
#include "asymkv/model/tokenizer/nfc.h"

namespace asymkv::tokenizer {
namespace {

bool matches_whole(const std::string& pattern, const std::string& text) {
  Matcher matcher;
  const auto match = matcher.find(Pattern::regex(pattern, "F"), text, 0);
  return match && match->begin == 0 && match->end == text.size();
}

TEST(Pattern, CharacterTypesAreUnicodes) {
  for (const std::string space : {"\t", "\v", "\r", " ", "\u0085", "\u00A0", "\u2003", "\u2028", "\u3000"}) {
    EXPECT_TRUE(matches_whole("\\s", space) && matches_whole("[a\\s]", space) && !matches_whole("\\S", space));
    EXPECT_FALSE(matches_whole("[\\S]", space) || matches_whole("[^\\s]", space));
  }
  for (const std::string other : {"a", "\u180E", "\u200B", "\uFEFF", "\x1C", "\U0010FFFF"}) {
    EXPECT_TRUE(matches_whole("\\S", other) && matches_whole("[\\S]", other) && !matches_whole("\\s", other));
  }
  EXPECT_TRUE(matches_whole("[\\s-]+", "-- -") && matches_whole("[-\\s]+", "- -"));
  EXPECT_TRUE(matches_whole("\\w+", "a\u0301\u0663_\u24B6") && matches_whole("\\W", "-"));
  EXPECT_TRUE(matches_whole("\\d\\D", "\u0663x") && matches_whole("\\v", "\v") && !matches_whole("\\v", "\n"));
  EXPECT_TRUE(matches_whole("\\x41\\x{1F600}\\u00e9", "A\U0001F600\u00e9"));
  EXPECT_TRUE(matches_whole("(?i:'S)", "'s") && matches_whole("(?i:'s)", "'\u017F"));
}

TEST(Pattern, UnknownConstructsAreRefused) {
  for (const char* bad : {"(?R)",   "(?<name>a)",   "(?m:a)", "(*UTF)",  "\\h",   "\\Z",   "\\1",  "\\C",
                          "\\K",    "^a",           "a$",     "a{,3}",   "a{2}+", "a{2}?", "a{",   "[[:alpha:]]",
                          "[a&&b]", "[a[b]]",       "[]",     "[a",      "\\",    "\\p{L", "\\pL", "\\p{Script=Han}",
                          "\\xFF",  "\\x{1234567}", "\\u12",  "[a-\\s]", "[\\W]", "\\x{}"}) {
    try {
      Pattern::regex(bad, "FIELD");
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << bad;
      EXPECT_EQ(std::string(e.what()).find("FIELD"), 0U);
    }
  }
  for (const char* bad : {"", "a**b(", "\xFF", "[b-a]", "\\p{Nonsense}"}) {
    EXPECT_THROW(Pattern::regex(bad, "FIELD"), Error) << bad;
  }
}

TEST(Pattern, BacktrackingIsBounded) {
  const Pattern pattern = Pattern::regex("(?:a|aa)+[bc]", "FIELD");
  Matcher matcher;
  EXPECT_THROW(matcher.find(pattern, std::string(200, 'a'), 0), Error);
}

TEST(Utf8, TakesWholeSequencesOnly) {
  struct Case {
    std::string bytes, text, held;
  };
  const std::vector<Case> cases = {
      {"a\xC3", "a", "\xC3"},
      {"\xE2\x82", "", "\xE2\x82"},
      {"\xE2\x28\xA1", "\uFFFD(\uFFFD", ""},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD", ""},            // a surrogate
      {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD", ""},  // overlong
      {"\xF0\x9F\x98x", "\uFFFDx", ""},                      // one maximal subpart
      {"\xF4\x90", "\uFFFD\uFFFD", ""},                      // above U+10FFFF
  };
  for (const Case& c : cases) {
    std::string bytes = c.bytes;
    EXPECT_EQ(take_utf8(bytes, false), c.text);
    EXPECT_EQ(bytes, c.held);
    EXPECT_EQ(take_utf8(bytes, true), c.held.empty() ? "" : "\uFFFD");
    EXPECT_EQ(bytes, "");
  }
}

TEST(ByteLevel, MapsAllBytesThereAndBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  EXPECT_EQ(to_byte_level(" \n"), "\u0120\u010A");
  EXPECT_EQ(from_byte_level("a b"), std::nullopt);
  EXPECT_EQ(from_byte_level("\xFF"), std::nullopt);
}

TEST(Nfc, KnownForms) {
  EXPECT_EQ(normalize_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(normalize_nfc("a\u0302\u0323"), "\u1EAD");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(normalize_nfc("\u212B\u0344"), "\u00C5\u0308\u0301");
  EXPECT_EQ(normalize_nfc("\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(normalize_nfc("\uFB01"), "\uFB01");        // compatibility forms stay
}

}  // namespace
}  // namespace asymkv::tokenizer
