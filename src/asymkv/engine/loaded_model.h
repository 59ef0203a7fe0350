#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "asymkv/model/forward/decoder.h"
#include "asymkv/model/model_files.h"
#include "asymkv/model/tokenizer/tokenizer.h"

namespace asymkv {

// A model ready to run: files (configuration, hashes), tokenizer, and the decoder with its weights.
struct LoadedModel {
  ModelFiles files;
  Tokenizer tokenizer;
  Decoder decoder;

  const ModelConfig& config() const { return files.config; }
  // Whether the model's configuration or its tokenizer says that this token ends a turn.
  bool is_end(int32_t token) const;
};

// Opens, checks and loads a model. Throws what open_model, load_tokenizer and Decoder throw, and Error{kBadInput} if
// the tokenizer knows more ids than the model.
std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& path, Backends backends);

// One with drawn weights (open_random_model), for measurements: its tokenizer knows one token.
std::unique_ptr<LoadedModel> load_random_model(const std::filesystem::path& path, uint64_t seed, Backends backends);

}  // namespace asymkv
