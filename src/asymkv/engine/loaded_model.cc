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

}  // namespace asymkv
