#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/model/tokenizer/golden_check.h"

// Vocabularies of published models, with texts and ids, from the source archive of llama-cpp-python
// (scripts/fetch_vocabs.py): each *.gguf has texts in *.gguf.inp and their ids, a line each, in *.gguf.out.
namespace asymkv {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> read_texts(const fs::path& path) {
  const std::string all = read_text_file(path);
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t begin = 0;
  for (size_t end = all.find(separator); end != std::string::npos; end = all.find(separator, begin)) {
    texts.push_back(all.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return texts;
}

std::vector<std::vector<int32_t>> read_ids(const fs::path& path) {
  std::istringstream all(read_text_file(path));
  std::vector<std::vector<int32_t>> ids;
  for (std::string line; std::getline(all, line);) {
    std::istringstream numbers(line);
    ids.emplace_back(std::istream_iterator<int32_t>(numbers), std::istream_iterator<int32_t>());
  }
  return ids;
}

class PublishedVocab : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = find_test_model(std::string("vocabs/ggml-vocab-") + GetParam() + ".gguf");
    if (path_.empty()) {
      GTEST_SKIP() << "SKIPPED: the vocabularies are not there, get them with scripts/fetch_vocabs.py"
                   << " (ASYMKV_TEST_SKIPPED_ENTIRELY)";
    }
  }
  fs::path path_;
};
class RefusedVocab : public PublishedVocab {};

TEST_P(PublishedVocab, IdsAreThoseBesideIt) {
  const Tokenizer tokenizer = load_tokenizer(path_);
  const std::vector<std::string> texts = read_texts(path_.string() + ".inp");
  const std::vector<std::vector<int32_t>> ids = read_ids(path_.string() + ".out");
  ASSERT_GE(texts.size(), 40);
  ASSERT_EQ(texts.size(), ids.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false}), ids[i]) << "text " << i << ": " << texts[i];
  }
}

TEST_P(RefusedVocab, ErrorNamesTheKey) {
  try {
    load_tokenizer(path_);
    ADD_FAILURE() << path_ << " was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("tokenizer.ggml.pre \""),
                                             testing::HasSubstr("tokenizer.ggml.model \"")));
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, PublishedVocab,
                         testing::Values("qwen2", "llama-bpe", "llama-spm", "phi-3", "gpt-2", "starcoder", "refact",
                                         "command-r"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, RefusedVocab,
                         testing::Values("deepseek-llm", "deepseek-coder", "falcon", "mpt", "qwen35", "gemma-4",
                                         "bert-bge"),
                         name_of);

}  // namespace
}  // namespace asymkv
