#include "asymkv/model/tokenizer/definition.h"

#include <charconv>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"

namespace asymkv::tokenizer {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string byte_token(unsigned byte) {
  return fmt::format("<0x{:02X}>", byte);
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<unsigned char>(value);
}

namespace {

int32_t token_of_merge(const TokenizerDefinition& definition, std::string_view token, size_t idx) {
  const auto it = definition.ids.find(token);
  if (it == definition.ids.end()) {
    throw_bad_input("{}: merges[{}] needs the token \"{}\", which the vocabulary does not have", definition.origin, idx,
                    token);
  }
  return it->second;
}

// Every value goes in with its length or as eight bytes, so that no two definitions give the same stream.
class DefinitionHash {
 public:
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    hash_.update(text);
  }
  void add(int64_t value) {
    char bytes[8];
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((static_cast<uint64_t>(value) >> (8 * i)) & 0xFFU);
    hash_.update(std::string_view(bytes, 8));
  }
  void add(const std::vector<int32_t>& values) {
    add(static_cast<int64_t>(values.size()));
    for (const int32_t value : values) add(int64_t{value});
  }
  void add(const std::optional<int32_t>& value) { add(int64_t{value.value_or(-1)}); }
  std::string hex_digest() { return hash_.hex_digest(); }

 private:
  Sha256 hash_;
};

void add_flags(DefinitionHash& hash, std::initializer_list<bool> flags) {
  for (const bool flag : flags) hash.add(int64_t{flag});
}

}  // namespace

void add_merge(TokenizerDefinition& definition, std::string_view left, std::string_view right, size_t idx) {
  const std::string merged = std::string(left) + std::string(right);
  definition.merges.push_back({token_of_merge(definition, left, idx), token_of_merge(definition, right, idx),
                               token_of_merge(definition, merged, idx)});
}

void add_merge_line(TokenizerDefinition& definition, std::string_view line, size_t idx) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    throw_bad_input("{}: merges[{}] must be two tokens with one space between, found \"{}\"", definition.origin, idx,
                    line);
  }
  add_merge(definition, line.substr(0, space), line.substr(space + 1), idx);
}

std::string definition_sha256(const TokenizerDefinition& definition) {
  DefinitionHash hash;
  hash.add("asymkv tokenizer 1");
  hash.add(static_cast<int64_t>(definition.tokens.size()));
  for (const std::string& token : definition.tokens) hash.add(token);
  hash.add(static_cast<int64_t>(definition.merges.size()));
  for (const MergeRule& rule : definition.merges) hash.add({rule.left, rule.right, rule.merged});
  hash.add(definition.unknown);
  const bool only_nfc = definition.normalizer == std::vector{NormalizerStep::kNfc};
  add_flags(hash, {definition.fuse_unknown, definition.ignore_merges, only_nfc});
  hash.add(static_cast<int64_t>(definition.steps.size()));
  for (const PreTokenizerStep& step : definition.steps) {
    hash.add(static_cast<int64_t>(step.kind));
    hash.add(step.pattern);
    hash.add(static_cast<int64_t>(step.behavior));
    add_flags(hash, {step.invert});
  }
  hash.add(static_cast<int64_t>(definition.added_tokens.size()));
  for (const AddedToken& token : definition.added_tokens) {
    hash.add(token.content);
    hash.add(int64_t{token.id});
    add_flags(hash, {token.special, token.normalized, token.lstrip, token.rstrip, token.single_word});
  }
  // What follows is left out where there is none of it: hashes of byte-level tokenizers are in published records.
  if (!only_nfc && !definition.normalizer.empty()) {
    hash.add("normalizer");
    hash.add(static_cast<int64_t>(definition.normalizer.size()));
    for (const NormalizerStep step : definition.normalizer) hash.add(static_cast<int64_t>(step));
  }
  if (definition.character_level) {
    hash.add("character level");
    hash.add(definition.stripped_spaces);
    add_flags(hash, {definition.first_marks_dropped});
  }
  hash.add(definition.prefix);
  hash.add(definition.suffix);
  hash.add(definition.bos);
  hash.add(definition.eos);
  return hash.hex_digest();
}

}  // namespace asymkv::tokenizer
