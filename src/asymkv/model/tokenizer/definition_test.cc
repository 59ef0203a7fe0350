#include "asymkv/model/tokenizer/definition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/model/tokenizer/golden_check.h"

namespace asymkv {
namespace {

using testing::HasSubstr;

void expect_error(const std::function<void()>& action, ErrorCode code, const std::string& message) {
  try {
    action();
    ADD_FAILURE() << "no error, expected: " << message;
  } catch (const Error& e) {
    EXPECT_EQ(error_code_name(e.code()), error_code_name(code)) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(message));
    EXPECT_THAT(e.what(), HasSubstr("FILE"));
  }
}

struct BadJson {
  const char* patch;  // JSON merge patch of small.json
  ErrorCode code;
  const char* message;
};

constexpr auto kBad = ErrorCode::kBadInput;
constexpr auto kUnserved = ErrorCode::kUnsupported;

const BadJson kBadJson[] = {
    {R"({"model":null})", kBad, "field \"model\" is missing"},
    {R"({"model":[]})", kBad, "model must be an object, found array"},
    {R"({"model":{"type":"Unigram"}})", kUnserved, "type \"Unigram\" is not supported"},
    {R"({"model":{"byte_fallback":true}})", kUnserved,
     "pretokenizers[1]: type \"ByteLevel\" is not supported, only Split, Digits and (with byte_fallback) Metaspace "
     "are"},
    {R"({"model":{"byte_fallback":1}})", kBad, "field \"byte_fallback\" must be true or false"},
    {R"({"model":{"dropout":0.1}})", kUnserved, "dropout"},
    {R"({"model":{"end_of_word_suffix":"</w>"}})", kUnserved, "end_of_word_suffix"},
    {R"({"model":{"continuing_subword_prefix":"##"}})", kUnserved, "continuing_subword_prefix"},
    {R"({"model":{"surprise":1}})", kUnserved, "model: field \"surprise\" is not known"},
    {R"({"model":{"vocab":null}})", kBad, "field \"vocab\" is missing"},
    {R"({"model":{"vocab":{"a":-1}}})", kBad, "vocab: the id of \"a\" must be an integer from 0 to"},
    {R"({"model":{"vocab":{"a":1000000000}}})", kBad, "found 1000000000"},
    {R"({"model":{"vocab":{"a":18446744073709551615}}})", kBad,
     "field \"a\" is 18446744073709551615, above the largest"},
    {R"({"model":{"vocab":{"a":1.5}}})", kBad, "found 1.5"},
    {R"({"model":{"vocab":{"a":0}}})", kBad, "both have the id 0"},
    {R"({"model":{"vocab":{"":3000}}})", kUnserved, "an empty token"},
    {R"({"model":{"unk_token":"nowhere"}})", kBad, "unk_token \"nowhere\" is not in the vocabulary"},
    {R"({"model":{"merges":null}})", kBad, "field \"merges\" is missing"},
    {R"({"model":{"merges":{}}})", kBad, "field \"merges\" must be an array"},
    {R"({"model":{"merges":["a b c"]}})", kBad, "merges[0] must be two tokens with one space between"},
    {R"({"model":{"merges":["ab"]}})", kBad, "merges[0] must be two tokens"},
    {R"({"model":{"merges":[["a"]]}})", kBad, "merges[0] must be"},
    {R"({"model":{"merges":[["a",1]]}})", kBad, "merges[0] must be"},
    {R"({"model":{"merges":[["a","\u4e16"]]}})", kBad, "merges[0] needs the token \"\u4e16\""},
    {R"({"version":"2.0"})", kUnserved, "version \"2.0\""},
    {R"({"surprise":{}})", kUnserved, "field \"surprise\" is not known"},
    {R"({"added_tokens":{}})", kBad, "field \"added_tokens\" must be an array"},
    {R"({"added_tokens":[{"content":"a"}]})", kBad, "added_tokens[0]: field \"id\" is missing"},
    {R"({"added_tokens":[{"id":5}]})", kBad, "added_tokens[0]: field \"content\" is missing"},
    {R"({"added_tokens":[{"id":900,"content":""}]})", kBad, "field \"content\" is empty"},
    {R"({"added_tokens":[{"id":77,"content":"<new>"}]})", kBad, "\"<new>\" has the id 77, expected 900"},
    {R"({"added_tokens":[{"id":2000000000,"content":"<new>"}]})", kBad, "expected 900"},
    {R"({"added_tokens":[{"id":900,"content":"<new>","color":1}]})", kUnserved, "field \"color\" is not known"},
    {R"({"added_tokens":[{"id":900,"content":"<a>"},{"id":901,"content":"<a>"}]})", kBad, "is there twice"},
    {R"({"normalizer":{"type":"Lowercase"}})", kUnserved,
     "normalizer: type \"Lowercase\" is not supported, only NFC, Prepend"},
    {R"({"normalizer":"NFC"})", kBad, "normalizer must be a JSON object"},
    {R"({"pre_tokenizer":null})", kUnserved, "pre_tokenizer: there is no ByteLevel step"},
    {R"({"pre_tokenizer":{"type":"Metaspace"}})", kUnserved, "type \"Metaspace\" is not supported"},
    {R"({"pre_tokenizer":{"pretokenizers":[]}})", kUnserved, "there is no ByteLevel step"},
    {R"({"pre_tokenizer":{"pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}})", kUnserved,
     "pre_tokenizer.pretokenizers[1]: a step behind ByteLevel"},
    {R"({"pre_tokenizer":{"pretokenizers":[{"type":"Split"}]}})", kBad, "field \"pattern\" is missing"},
    {R"({"pre_tokenizer":{"pretokenizers":[{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"},
        {"type":"ByteLevel"}]}})",
     kBad, "pretokenizers[0].pattern: the pattern is malformed: missing closing parenthesis"},
    {R"j({"pre_tokenizer":{"pretokenizers":[{"type":"Split","pattern":{"Regex":"(?R)"},"behavior":"Isolated"},
        {"type":"ByteLevel"}]
}
})j",
     kUnserved, "pattern has a group that is not supported, \"(?R)\" at byte 0"},
    {R"({"pre_tokenizer":{"pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways"}]}})", kBad,
     "behavior \"Sideways\" is not known"},
    {R"({"post_processor":{"type":"BertProcessing"}})", kUnserved, "type \"BertProcessing\" is not supported"},
    {R"({"post_processor":{"single":[]}})", kUnserved, "the template drops the text"},
    {R"({"post_processor":{"single":[{"SpecialToken":{"id":"<no>"}},{"Sequence":{"id":"A"}}]}})", kBad,
     "special_tokens: field \"<no>\" is missing"},
    {R"({"post_processor":{"special_tokens":{"<|im_start|>":{"ids":[99999]}}}})", kBad, "ids has 99999"},
    {R"({"decoder":null})", kUnserved, "there is no ByteLevel decoder"},
    {R"({"decoder":{"type":"WordPiece"}})", kUnserved, "decoder: type \"WordPiece\""},
};

// Patches of llama2.json.
const BadJson kBadSentencePiece[] = {
    {R"({"model":{"type":"Unigram"}})", kUnserved, "type \"Unigram\" is not supported, only \"BPE\""},
    {R"({"model":{"byte_fallback":false}})", kUnserved,
     "there is no ByteLevel step, and the model has no byte_fallback"},
    {R"({"normalizer":{"type":"Prepend","normalizers":null,"prepend":"x"}})", kUnserved,
     "normalizer: prepend \"x\" is not supported"},
    {R"({"normalizer":{"type":"Prepend","normalizers":null}})", kBad, "field \"prepend\" is missing"},
    {R"({"normalizer":{"type":"Replace","normalizers":null,"pattern":{"String":"a"},"content":"\u2581"}})", kUnserved,
     "normalizer.pattern: String \"a\" is not supported, only \" \" is"},
    {R"({"normalizer":{"type":"Replace","normalizers":null,"pattern":{"Regex":" "},"content":"\u2581"}})", kUnserved,
     "normalizer.pattern: field \"Regex\" is not known"},
    {R"({"normalizer":{"type":"Replace","normalizers":null,"pattern":{"String":" "},"content":"_"}})", kUnserved,
     "content \"_\" is not supported"},
    {R"({"pre_tokenizer":{"type":"Metaspace"}})", kBad, "pre_tokenizer: field \"replacement\" is missing"},
    {R"({"pre_tokenizer":{"type":"Metaspace","replacement":"_"}})", kUnserved, "replacement \"_\" is not supported"},
    {R"({"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"last"}})", kBad,
     "prepend_scheme \"last\" is not known"},
    {R"({"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","add_prefix_space":false}})", kBad,
     "add_prefix_space is false but prepend_scheme \"always\""},
    {R"({"pre_tokenizer":{"type":"Whitespace"}})", kUnserved, "type \"Whitespace\" is not supported"},
    {R"({"decoder":null})", kUnserved, "decoder: there is no decoder"},
    {R"({"decoder":{"type":"ByteLevel","decoders":null}})", kUnserved, "decoder: type \"ByteLevel\" is not supported"},
    {R"({"decoder":{"decoders":[]}})", kUnserved, "decoder: there is no ByteFallback step"},
    {R"({"decoder":{"decoders":[{"type":"ByteFallback"}]}})", kUnserved,
     "decoder.decoders[0]: type \"ByteFallback\" is not supported, only Replace or Metaspace"},
    {R"({"decoder":{"decoders":[{"type":"Metaspace","replacement":"\u2581"}]}})", kUnserved, "no ByteFallback step"},
    {R"({"decoder":{"decoders":[{"type":"Metaspace","replacement":"\u2581"},{"type":"ByteFallback"},{"type":"Strip"}]}})",
     kBad, "decoders[2]: field \"content\" is missing"},
    {R"({"decoder":{"decoders":[{"type":"Metaspace","replacement":"\u2581"},{"type":"ByteFallback"},{"type":"Fuse"},
        {"type":"Strip","content":" ","start":1,"stop":1}]}})",
     kUnserved, "start 1 and stop 1 are not supported"},
};

template <size_t n>
void expect_refused(const std::string& base, const BadJson (&table)[n]) {
  const Json small = read_golden(base);
  for (const BadJson& bad : table) {
    SCOPED_TRACE(bad.patch);
    Json file = small;
    file.merge_patch(parse_json(bad.patch, "patch"));
    expect_error([&] { Tokenizer::from_json(file, "FILE"); }, bad.code, bad.message);
  }
}

TEST(DefinitionFromJson, EveryMalformedFileIsRefusedByName) {
  expect_refused("small.json", kBadJson);
  expect_refused("llama2.json", kBadSentencePiece);
  expect_error([] { Tokenizer::from_json(Json(3), "FILE"); }, kBad, "must be an object");
}

TEST(DefinitionFromJson, DepthIsBounded) {
  std::string deep = R"({"type":"ByteLevel"})";
  for (int i = 0; i < 6; ++i) deep = R"({"type":"Sequence","pretokenizers":[)" + deep + "]}";
  Json file = read_golden("small.json");
  file["pre_tokenizer"] = parse_json(deep, "deep");
  expect_error([&] { Tokenizer::from_json(file, "FILE"); }, kUnserved, "nested sequences");
  const std::string brackets = std::string(200, '[') + std::string(200, ']');
  const Json merges = parse_json(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[)" + brackets + "]}}", "deep");
  expect_error([&] { Tokenizer::from_json(merges, "FILE"); }, kBad, "merges[0] must be");
}

TEST(DefinitionFromJson, ConfigNamesBosAndEos) {
  const Json small = read_golden("small.json");
  const auto with = [&](const char* config) {
    return Tokenizer::from_json(small, "FILE", parse_json(config, "config"));
  };
  const Tokenizer plain = Tokenizer::from_json(small, "FILE");
  EXPECT_EQ(plain.bos_id(), plain.token_id("<|im_start|>"));  // the template begins with it
  EXPECT_TRUE(plain.eos_ids().empty());
  const int32_t end = plain.token_id("<|im_end|>").value();
  const Tokenizer named = with(R"({"bos_token":{"content":"<x y>"},"eos_token":"<|im_end|>","eos_token_id":[5,5]})");
  EXPECT_EQ(named.bos_id(), plain.token_id("<x y>"));
  EXPECT_EQ(named.eos_ids(), (std::vector<int32_t>{end, 5}));
  expect_error([&] { with(R"({"eos_token":"<none>"})"); }, kBad, "\"<none>\" is not a token");
  expect_error([&] { with(R"({"eos_token":7})"); }, kBad, "field \"eos_token\" must be a string");
  expect_error([&] { with(R"({"eos_token_id":-2})"); }, kBad, "eos_token_id -2 is not the id of a token");
  expect_error([&] { with("[]"); }, kBad, "must be an object");
}

GgufTokenizerData gguf_data() {
  GgufTokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  data.tokens = {"a", "b", "ab", "<eos>", "[UNUSED]", "<user>"};
  data.token_types = {1, 1, 1, 3, 5, 4};
  data.merges = {"a b"};
  data.bos = 3;
  data.eos = 3;
  data.eot = 3;
  return data;
}

TEST(DefinitionFromGguf, SmallVocabulary) {
  GgufTokenizerData data = gguf_data();
  const Tokenizer tokenizer = Tokenizer::from_gguf_data(data, "FILE");
  EXPECT_EQ(tokenizer.encode("abba<eos><user>"), (std::vector<int32_t>{2, 1, 0, 3, 5}));
  EXPECT_EQ(tokenizer.encode("a<user>", {.parse_special = false}), (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(tokenizer.eos_ids(), std::vector<int32_t>{3});
  EXPECT_EQ(tokenizer.token_id("[UNUSED]"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(3));
  EXPECT_FALSE(tokenizer.is_special(5));
  data.add_bos = true;
  EXPECT_EQ(Tokenizer::from_gguf_data(data, "FILE").encode("a"), (std::vector<int32_t>{3, 0}));
}

struct BadGguf {
  std::function<void(GgufTokenizerData&)> spoil;
  ErrorCode code;
  const char* message;
};

const BadGguf kBadGguf[] = {
    {[](auto& d) { d.model = "bert"; }, kUnserved, "tokenizer.ggml.model \"bert\" is not supported"},
    {[](auto& d) { d.model = "llama"; }, kBad, "tokenizer.ggml.scores has 0 entries, tokenizer.ggml.tokens 6"},
    {[](auto& d) { d.pre = "poro-chat"; }, kUnserved, "tokenizer.ggml.pre \"poro-chat\" is not supported"},
    {[](auto& d) { d.tokens.clear(); }, kBad, "tokenizer.ggml.tokens is empty"},
    {[](auto& d) { d.token_types.pop_back(); }, kBad, "token_type has 5 entries, tokenizer.ggml.tokens 6"},
    {[](auto& d) { d.token_types[1] = 9; }, kBad, "token_type[1] is 9"},
    {[](auto& d) { d.token_types[1] = 6; }, kUnserved, "token_type[1] is a byte token"},
    {[](auto& d) { d.tokens[1] = "a"; }, kBad, "tokens[0] and [1] are both \"a\""},
    {[](auto& d) { d.tokens[1] = ""; }, kBad, "tokens[1] is empty"},
    {[](auto& d) { d.tokens[1] = "\xFF"; }, kBad, "tokens[1] is not UTF-8"},
    {[](auto& d) { d.tokens[3] = std::string(5000, 'x'); }, kUnserved, "tokens[3] has 5000 bytes"},
    {[](auto& d) { d.merges[0] = "ab"; }, kBad, "merges[0] must be two tokens"},
    {[](auto& d) { d.merges[0] = "b a"; }, kBad, "merges[0] needs the token \"ba\""},
    {[](auto& d) { d.bos = 6; }, kBad, "bos_token_id 6 is not a token"},
    {[](auto& d) { d.eos = -1; }, kBad, "eos_token_id -1 is not a token"},
    {[](auto& d) { d.eos = 2147483648; }, kBad, "eos_token_id 2147483648 is not a token"},
    {[](auto& d) { d.eot = 4; }, kBad, "eot_token_id 4 is not a token"},
    {[](auto& d) { d.token_types[1] = 4294967295; }, kBad, "token_type[1] is 4294967295, expected 1 to 6"},
    {[](auto& d) { d.bos.reset(), d.add_bos = true; }, kBad, "add_bos_token is true but"},
};

TEST(DefinitionFromGguf, EveryMalformedFieldIsRefusedByName) {
  for (const BadGguf& bad : kBadGguf) {
    GgufTokenizerData data = gguf_data();
    bad.spoil(data);
    expect_error([&] { Tokenizer::from_gguf_data(data, "FILE"); }, bad.code, bad.message);
  }
}

TEST(LoadTokenizer, PathsWithoutATokenizerAreRefused) {
  const auto here = golden_folder().string();
  EXPECT_THROW(load_tokenizer(golden_folder() / "nothing.gguf"), Error);
  EXPECT_THROW(load_tokenizer(golden_folder() / "nothing"), Error);
  EXPECT_THROW(load_tokenizer(golden_folder()), Error);  // a folder without tokenizer.json
  EXPECT_EQ(load_tokenizer(golden_folder() / "small.json").vocab_size(), 910);
}

// A vocabulary of SentencePiece's BPE kind: merges follow the scores, and what has no token is spelled in bytes.
TEST(SentencePieceFromGguf, MergesByScoreAndFallsBackToBytes) {
  GgufTokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.token_types = {2, 3, 3};
  for (unsigned byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.token_types.push_back(6);
  }
  for (const char* token : {"\u2581", "a", "b", "c", "bc", "ab", "\u2581a"}) {
    data.tokens.emplace_back(token);
    data.token_types.push_back(1);
  }
  data.scores.assign(data.tokens.size(), 0.0F);
  data.scores[263] = -1.0F;  // "bc" before "ab"
  data.scores[264] = -2.0F;
  data.scores[265] = -3.0F;
  data.bos = 1;
  const Tokenizer tokenizer = Tokenizer::from_gguf_data(data, "FILE");
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{1, 265, 263}));
  EXPECT_EQ(tokenizer.encode("\u00e9", {.add_special = false}), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.decode(Ids{265, 263, 259, 3 + 0xC3, 3 + 0xA9}, true), "abc \u00e9");
  EXPECT_EQ(tokenizer.decode(Ids{260, 3 + 0xC3, 3 + 0x41, 261}, true), "a\uFFFD\uFFFDb");
  data.add_space_prefix = false;
  EXPECT_EQ(Tokenizer::from_gguf_data(data, "FILE").encode("abc"), (Ids{1, 260, 263}));
}

}  // namespace
}  // namespace asymkv
