#include "asymkv/model/tokenizer/golden_check.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "asymkv/base/utf8.h"

namespace asymkv {
namespace {

using Ids = std::vector<int32_t>;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The stream must never show a broken sequence, and all of it must be the whole text.
void expect_streams_as(const Tokenizer& tokenizer, const Ids& ids, bool skip_special, const std::string& text) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos) << testing::PrintToString(ids);
    streamed += piece;
  }
  streamed += decoder.flush();
  EXPECT_EQ(streamed, text) << testing::PrintToString(ids);
  EXPECT_EQ(decoder.flush(), "");
}

void expect_decodes(const Tokenizer& tokenizer, const Ids& ids, bool skip_special, const std::string& text) {
  EXPECT_EQ(tokenizer.decode(ids, skip_special), text) << testing::PrintToString(ids);
  expect_streams_as(tokenizer, ids, skip_special, text);
}

}  // namespace

std::filesystem::path golden_folder() {
  return std::filesystem::path(environment("ASYMKV_SOURCE_DIR")) / "tests/golden/tokenizer";
}

Json read_golden(const std::string& name) {
  return read_json_file(golden_folder() / name);
}

std::vector<std::string> golden_strings(size_t step) {
  const auto all = read_golden("strings.json").get<std::vector<std::string>>();
  std::vector<std::string> strings;
  for (size_t i = 0; i < all.size(); i += step) strings.push_back(all[i]);
  return strings;
}

void expect_golden(const Tokenizer& tokenizer, const Json& golden, const std::vector<std::string>& strings) {
  ASSERT_EQ(golden.at("ids").size(), strings.size());
  const auto differing = [&](const char* field, size_t i, const auto& same) {
    const Json& map = golden.at(field);
    const auto it = map.find(std::to_string(i));
    return it == map.end() ? same : it->get<std::decay_t<decltype(same)>>();
  };
  for (size_t i = 0; i < strings.size(); ++i) {
    SCOPED_TRACE("string " + std::to_string(i) + ": " + Json(strings[i]).dump());
    const auto ids = golden.at("ids")[i].get<Ids>();
    EXPECT_EQ(tokenizer.encode(strings[i]), ids);
    EXPECT_EQ(tokenizer.encode(strings[i], {.parse_special = false}), differing("plain_ids", i, ids));
    const std::string text = differing("decoded", i, strings[i]);
    expect_decodes(tokenizer, ids, false, text);
    expect_decodes(tokenizer, ids, true, differing("decoded_without_special", i, text));
  }
  for (const Json& row : golden.at("random")) {
    expect_decodes(tokenizer, row[0].get<Ids>(), false, row[1].get<std::string>());
  }
}

std::filesystem::path find_test_model(const std::string& file) {
  const std::string named = environment("ASYMKV_MODEL_DIR");
  const std::filesystem::path folder = named.empty()
                                           ? std::filesystem::path(environment("HOME")) / ".cache/asymkv/models"
                                           : std::filesystem::path(named);
  const std::filesystem::path path = folder / file;
  return std::filesystem::is_regular_file(path) ? path : std::filesystem::path();
}

}  // namespace asymkv
