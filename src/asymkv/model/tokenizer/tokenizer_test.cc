#include "asymkv/model/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "asymkv/base/error.h"
#include "asymkv/model/tokenizer/golden_check.h"

namespace asymkv {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int32_t>;

Tokenizer small_tokenizer() {
  return Tokenizer::from_json(read_golden("small.json"), "small.json");
}

std::filesystem::path byte_model_folder() {
  return golden_folder().parent_path().parent_path().parent_path() / "models/probe-robust";
}

TEST(TokenizerGolden, SmallTokenizerIsTheReferences) {
  expect_golden(small_tokenizer(), read_golden("small_golden.json"), golden_strings());
}

TEST(TokenizerGolden, ByteTokenizerIsTheReferences) {
  const Tokenizer tokenizer = load_tokenizer(byte_model_folder());
  expect_golden(tokenizer, read_golden("byte_golden.json"), golden_strings());
}

void expect_variants(const std::string& base_file, const std::string& variants_file) {
  const Json base = read_golden(base_file);
  const Json variants = read_golden(variants_file);
  EXPECT_GT(variants.size(), 10U);
  for (const auto& [name, variant] : variants.items()) {
    SCOPED_TRACE(name);
    Json file = base;
    file.merge_patch(variant.at("patch"));
    expect_golden(Tokenizer::from_json(file, name), variant.at("golden"), golden_strings(24));
  }
}

TEST(TokenizerGolden, EveryConstructIsTheReferences) {
  expect_variants("small.json", "variants.json");
}

TEST(TokenizerGolden, Llama2StyleIsTheReferences) {
  const Tokenizer tokenizer = Tokenizer::from_json(read_golden("llama2.json"), "llama2.json");
  expect_golden(tokenizer, read_golden("llama2_golden.json"), golden_strings());
}

TEST(TokenizerGolden, GemmaStyleIsTheReferences) {
  const Tokenizer tokenizer = Tokenizer::from_json(read_golden("gemma.json"), "gemma.json");
  expect_golden(tokenizer, read_golden("gemma_golden.json"), golden_strings());
}

TEST(TokenizerGolden, EverySentencePieceConstructIsTheReferences) {
  expect_variants("llama2.json", "sentencepiece_variants.json");
}

TEST(TokenizerGolden, MergesInTheOlderFormGiveTheSameTokenizer) {
  Json file = read_golden("small.json");
  std::vector<std::string> lines = {"#version: 0.2"};
  for (const Json& rule : file["model"]["merges"]) {
    lines.push_back(rule[0].get<std::string>() + " " + rule[1].get<std::string>());
  }
  file["model"]["merges"] = lines;
  const Tokenizer tokenizer = Tokenizer::from_json(file, "small.json");
  EXPECT_EQ(tokenizer.sha256(), small_tokenizer().sha256());
}

TEST(ByteTokenizer, IdsAreBytes) {
  const Tokenizer tokenizer = load_tokenizer(byte_model_folder());
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_EQ(tokenizer.bos_id(), 256);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(257));
  EXPECT_EQ(tokenizer.token_id("<|pad|>"), 258);
  EXPECT_THAT(tokenizer.encode("a \xC3\xA9\n"), ElementsAre(256, 'a', ' ', 0xC3, 0xA9, '\n'));
  EXPECT_THAT(tokenizer.encode("a", {.add_special = false}), ElementsAre('a'));
  for (int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokenizer.token_bytes(byte), std::string(1, static_cast<char>(byte)));
  }
}

TEST(ByteTokenizer, IdsWithoutATokenDecodeToNothing) {
  const Tokenizer tokenizer = load_tokenizer(byte_model_folder());
  EXPECT_EQ(tokenizer.decode(Ids{'a', 259, 263, -1, INT32_MIN, INT32_MAX, 'b'}, false), "ab");
  EXPECT_EQ(tokenizer.token_bytes(259), "");
  EXPECT_FALSE(tokenizer.is_special(-1));
}

TEST(StreamDecoder, HoldsBackUntilASequenceIsCompleteOrIllFormed) {
  StreamDecoder decoder(load_tokenizer(byte_model_folder()), true);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push('x'), "\uFFFDx");
  EXPECT_EQ(decoder.push(0x80), "\uFFFD");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.push(257), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.push('a'), "a");
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const std::string bad : {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xC0\x80", "ab\xF4\x90\x80\x80"}) {
    try {
      tokenizer.encode(bad);
      FAIL() << Json(bad).dump(-1, ' ', true, Json::error_handler_t::replace);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadInput);
      EXPECT_STREQ(e.what(), "the text to tokenize is not valid UTF-8 at byte 2");
    }
  }
}

// A quadratic merge or pattern would need hours for each of these.
TEST(Tokenizer, LongInputsTakeLinearTime) {
  const Tokenizer tokenizer = small_tokenizer();
  const size_t size = 1 << 20;
  std::string marks;
  while (marks.size() < size) marks += "\u0301\u0323";
  std::string letters(size, 'a');
  for (size_t i = 0; i < size; ++i) letters[i] = static_cast<char>('a' + (i * i + i / 7) % 26);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text : {std::string(size, 'a'), letters, std::string(size, ' ') + "a",
                                  std::string(size, '\n'), std::string(size, '!'), std::string(size, '1')}) {
    const Ids ids = tokenizer.encode(text, {.add_special = false});
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
  EXPECT_GT(tokenizer.encode("a" + marks).size(), 0U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2));
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<std::string> strings = golden_strings(10);
  std::vector<Ids> expected;
  for (const std::string& text : strings) expected.push_back(small_tokenizer().encode(text));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < strings.size(); ++i) wrong[t] += tokenizer.encode(strings[i]) != expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Tokenizer, HashFollowsWhatDecidesIds) {
  const Json small = read_golden("small.json");
  const std::string hash = Tokenizer::from_json(small, "a").sha256();
  EXPECT_EQ(Tokenizer::from_json(small, "b").sha256(), hash);
  for (const char* patch :
       {R"({"normalizer":null})", R"({"post_processor":null})", R"({"added_tokens":[],"post_processor":null})",
        R"({"model":{"ignore_merges":true}})", R"({"model":{"merges":[]}})"}) {
    Json file = small;
    file.merge_patch(parse_json(patch, "patch"));
    EXPECT_NE(Tokenizer::from_json(file, "a").sha256(), hash) << patch;
  }
}

}  // namespace
}  // namespace asymkv
