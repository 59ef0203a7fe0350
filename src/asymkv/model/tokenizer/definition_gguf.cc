#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/model/tokenizer/added_tokens.h"
#include "asymkv/model/tokenizer/definition.h"
#include "asymkv/model/tokenizer/utf8.h"

namespace asymkv::tokenizer {
namespace {

// As published with Qwen2 (tokenizer.json, pre_tokenizer.pretokenizers[0]).
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// llama_token_type.
enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

PreTokenizerStep split_step(const char* pattern) {
  PreTokenizerStep step;
  step.pattern = pattern;
  step.field = "tokenizer.ggml.pre";
  return step;
}

// The pre-tokenizer and normalizer that the name stands for in the models' published tokenizer.json.
void set_pre_tokenizer(const GgufTokenizerData& data, TokenizerDefinition& definition) {
  if (data.pre == "qwen2") {
    definition.nfc = true;
    definition.steps = {split_step(kQwen2Pattern)};
  } else if (data.pre == "smollm") {
    definition.steps = {split_step(R"(\p{N})"), split_step(kGpt2Pattern)};
  } else if (data.pre == "gpt-2") {
    definition.steps = {split_step(kGpt2Pattern)};
  } else {
    throw_unsupported("{}: tokenizer.ggml.pre \"{}\" is not supported, only \"qwen2\", \"smollm\" and \"gpt-2\" are",
                      definition.origin, data.pre);
  }
}

void add_token(const GgufTokenizerData& data, size_t i, TokenizerDefinition& definition) {
  const std::string& token = data.tokens[i];
  const int32_t type = data.token_types[i];
  const auto id = static_cast<int32_t>(i);
  if (type == kUnused) return;
  if (type == kByte) {
    throw_unsupported("{}: tokenizer.ggml.token_type[{}] is a byte token, which byte-level BPE does not have",
                      definition.origin, i);
  }
  if (type < kNormal || type > kByte) {
    throw_bad_input("{}: tokenizer.ggml.token_type[{}] is {}, expected 1 to 6", definition.origin, i, type);
  }
  if (token.empty()) throw_bad_input("{}: tokenizer.ggml.tokens[{}] is empty", definition.origin, i);
  if (find_invalid_utf8(token) != std::string_view::npos) {
    throw_bad_input("{}: tokenizer.ggml.tokens[{}] is not UTF-8", definition.origin, i);
  }
  const auto [it, is_new] = definition.ids.emplace(token, id);
  if (!is_new) {
    throw_bad_input("{}: tokenizer.ggml.tokens[{}] and [{}] are both \"{}\"", definition.origin, it->second, i, token);
  }
  definition.tokens[i] = token;
  if (type == kNormal) return;
  if (token.size() > kMaxAddedTokenBytes) {
    throw_unsupported("{}: tokenizer.ggml.tokens[{}] has {} bytes, special tokens may have at most {}",
                      definition.origin, i, token.size(), kMaxAddedTokenBytes);
  }
  AddedToken added;
  added.content = token;
  added.id = id;
  added.special = type != kUserDefined;
  definition.added_tokens.push_back(std::move(added));
}

int32_t checked_id(int64_t id, const char* key, const TokenizerDefinition& definition) {
  if (!definition.has_token(id)) throw_bad_input("{}: {} {} is not a token", definition.origin, key, id);
  return static_cast<int32_t>(id);
}

void set_special_ids(const GgufTokenizerData& data, TokenizerDefinition& definition) {
  if (data.bos) definition.bos = checked_id(*data.bos, "tokenizer.ggml.bos_token_id", definition);
  for (const int64_t id : data.eos) {
    const int32_t eos = checked_id(id, "tokenizer.ggml.eos_token_id", definition);
    if (std::ranges::find(definition.eos, eos) == definition.eos.end()) definition.eos.push_back(eos);
  }
  if (!data.add_bos) return;
  if (!definition.bos) {
    throw_bad_input("{}: tokenizer.ggml.add_bos_token is true but tokenizer.ggml.bos_token_id is missing",
                    definition.origin);
  }
  definition.prefix = {*definition.bos};
}

}  // namespace

TokenizerDefinition definition_from_gguf(const GgufTokenizerData& data, std::string_view origin) {
  TokenizerDefinition definition;
  definition.origin = origin;
  if (data.model != "gpt2") {
    throw_unsupported("{}: tokenizer.ggml.model \"{}\" is not supported, only \"gpt2\" (byte-level BPE) is", origin,
                      data.model);
  }
  set_pre_tokenizer(data, definition);
  if (data.tokens.empty()) throw_bad_input("{}: tokenizer.ggml.tokens is empty", origin);
  if (data.tokens.size() >= static_cast<size_t>(INT32_MAX)) {
    throw_bad_input("{}: tokenizer.ggml.tokens has {} entries", origin, data.tokens.size());
  }
  if (data.token_types.size() != data.tokens.size()) {
    throw_bad_input("{}: tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}", origin,
                    data.token_types.size(), data.tokens.size());
  }
  definition.tokens.resize(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) add_token(data, i, definition);
  for (size_t i = 0; i < data.merges.size(); ++i) add_merge_line(definition, data.merges[i], i);
  set_special_ids(data, definition);
  return definition;
}

}  // namespace asymkv::tokenizer
