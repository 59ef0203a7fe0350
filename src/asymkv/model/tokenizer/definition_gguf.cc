#include <algorithm>
#include <cmath>
#include <tuple>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/added_tokens.h"
#include "asymkv/model/tokenizer/definition.h"

namespace asymkv::tokenizer {
namespace {

// As published with Qwen2 (tokenizer.json, pre_tokenizer.pretokenizers[0]).
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Llama 3's, Mistral's (tekken) and o200k's, each from tokenizer.json of a model that the name stands for.
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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
    definition.normalizer = {NormalizerStep::kNfc};
    definition.steps = {split_step(kQwen2Pattern)};
  } else if (data.pre == "llama-bpe" || data.pre == "dbrx") {
    definition.steps = {split_step(kLlama3Pattern)};
    definition.ignore_merges = data.pre == "llama-bpe";
  } else if (data.pre == "tekken") {
    definition.steps = {split_step(kTekkenPattern)};
    definition.ignore_merges = true;
  } else if (data.pre == "gpt-4o") {
    definition.steps = {split_step(kO200kPattern)};
  } else if (data.pre == "smollm" || data.pre == "starcoder" || data.pre == "refact" || data.pre == "command-r") {
    definition.steps = {split_step(R"(\p{N})"), split_step(kGpt2Pattern)};
  } else if (data.pre == "gpt-2") {
    definition.steps = {split_step(kGpt2Pattern)};
  } else {
    throw_unsupported(
        "{}: tokenizer.ggml.pre \"{}\" is not supported, only qwen2, llama-bpe, dbrx, tekken, gpt-4o, smollm, "
        "starcoder, refact, command-r and gpt-2 are",
        definition.origin, data.pre);
  }
}

void add_token(const GgufTokenizerData& data, size_t i, TokenizerDefinition& definition) {
  const std::string& token = data.tokens[i];
  const int64_t type = data.token_types[i];
  const auto id = static_cast<int32_t>(i);
  if (type == kUnused) return;
  if (type == kByte && !definition.character_level) {
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
  if (type == kByte && !byte_of_token(token)) {
    throw_bad_input("{}: tokenizer.ggml.tokens[{}] is a byte token but spelled \"{}\"", definition.origin, i, token);
  }
  if (type == kNormal || type == kByte) return;
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
  if (data.eos) definition.eos.push_back(checked_id(*data.eos, "tokenizer.ggml.eos_token_id", definition));
  if (data.eot) {
    const int32_t eot = checked_id(*data.eot, "tokenizer.ggml.eot_token_id", definition);
    if (data.eot != data.eos) definition.eos.push_back(eot);
  }
  // Files that do not say so are older than the key; their kinds begin a text with it.
  const bool begins = definition.character_level || data.pre == "llama-bpe" || data.pre == "tekken";
  if (!data.add_bos.value_or(begins)) return;
  if (!definition.bos) {
    throw_bad_input("{}: tokenizer.ggml.add_bos_token is true but tokenizer.ggml.bos_token_id is missing",
                    definition.origin);
  }
  definition.prefix = {*definition.bos};
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

struct ScoredMerge {
  float score;
  size_t left_len, right_len;  // characters
  MergeRule rule;
};

// Every way to cut a token into two, in the order of transformers' conversion of SentencePiece vocabularies
// (generate_merges): by score, then by length of the left and right part, all descending.
std::vector<ScoredMerge> scored_merges(const GgufTokenizerData& data, const TokenizerDefinition& definition) {
  std::vector<ScoredMerge> merges;
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.token_types[i] != kNormal) continue;
    const std::string_view token = data.tokens[i];
    const size_t first = merges.size();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0U) == 0x80U) continue;
      const auto left = definition.ids.find(token.substr(0, cut));
      if (left == definition.ids.end()) continue;
      const auto right = definition.ids.find(token.substr(cut));
      if (right == definition.ids.end()) continue;
      merges.push_back({data.scores[i],
                        count_code_points(token.substr(0, cut)),
                        count_code_points(token.substr(cut)),
                        {left->second, right->second, static_cast<int32_t>(i)}});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(), [](const auto& a, const auto& b) {
      return std::tie(a.rule.left, a.rule.right) < std::tie(b.rule.left, b.rule.right);
    });
  }
  std::ranges::stable_sort(merges, [](const auto& a, const auto& b) {
    return std::tie(a.score, a.left_len, a.right_len) > std::tie(b.score, b.left_len, b.right_len);
  });
  return merges;
}

void set_sentencepiece(const GgufTokenizerData& data, TokenizerDefinition& definition) {
  if (data.scores.size() != data.tokens.size()) {
    throw_bad_input("{}: tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens {}", definition.origin,
                    data.scores.size(), data.tokens.size());
  }
  for (size_t i = 0; i < data.scores.size(); ++i) {
    if (std::isnan(data.scores[i]))
      throw_bad_input("{}: tokenizer.ggml.scores[{}] is not a number", definition.origin, i);
    if (data.token_types[i] == kUnknown && !definition.unknown) definition.unknown = static_cast<int32_t>(i);
  }
  if (data.add_space_prefix) {
    definition.normalizer.push_back(NormalizerStep::kPrependMark);
    definition.stripped_spaces = 1;
  }
  definition.normalizer.push_back(NormalizerStep::kMarkSpaces);
  definition.fuse_unknown = true;
  for (const ScoredMerge& merge : scored_merges(data, definition)) definition.merges.push_back(merge.rule);
}

}  // namespace

TokenizerDefinition definition_from_gguf(const GgufTokenizerData& data, std::string_view origin) {
  TokenizerDefinition definition;
  definition.origin = origin;
  definition.character_level = data.model == "llama";
  if (data.model != "gpt2" && data.model != "llama") {
    throw_unsupported(
        "{}: tokenizer.ggml.model \"{}\" is not supported, only \"gpt2\" (byte-level BPE) and \"llama\" "
        "(SentencePiece BPE) are",
        origin, data.model);
  }
  if (!definition.character_level) set_pre_tokenizer(data, definition);
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
  if (definition.character_level) set_sentencepiece(data, definition);
  for (size_t i = 0; i < data.merges.size(); ++i) add_merge_line(definition, data.merges[i], i);
  set_special_ids(data, definition);
  return definition;
}

}  // namespace asymkv::tokenizer
