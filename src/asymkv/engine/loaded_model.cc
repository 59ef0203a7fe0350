#include "asymkv/engine/loaded_model.h"

#include <algorithm>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {

bool LoadedModel::is_end(int32_t token) const {
  const auto has = [token](const std::vector<int32_t>& ids) { return std::ranges::find(ids, token) != ids.end(); };
  return has(config().eos_token_ids) || has(tokenizer.eos_ids());
}

std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& path, Backends backends) {
  ModelFiles files = open_model(path);
  Tokenizer tokenizer = load_tokenizer(path);
  if (tokenizer.vocab_size() > files.config.vocab_size) {
    throw_bad_input("{}: the tokenizer has {} ids but the model only {}", path.string(), tokenizer.vocab_size(),
                    files.config.vocab_size);
  }
  Decoder decoder(files.config, *files.weights, std::move(backends));
  return std::make_unique<LoadedModel>(LoadedModel{std::move(files), std::move(tokenizer), std::move(decoder)});
}

std::unique_ptr<LoadedModel> load_random_model(const std::filesystem::path& path, uint64_t seed, Backends backends) {
  ModelFiles files = open_random_model(path, seed);
  GgufTokenizerData one_token;
  one_token.model = "gpt2";
  one_token.pre = "qwen2";
  one_token.tokens = {"a"};
  one_token.token_types = {1};
  Tokenizer tokenizer = Tokenizer::from_gguf_data(one_token, path.string());
  Decoder decoder(files.config, *files.weights, std::move(backends));
  return std::make_unique<LoadedModel>(LoadedModel{std::move(files), std::move(tokenizer), std::move(decoder)});
}

}  // namespace asymkv
