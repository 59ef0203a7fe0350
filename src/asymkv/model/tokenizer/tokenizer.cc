#include "asymkv/model/tokenizer/tokenizer.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/added_tokens.h"
#include "asymkv/model/tokenizer/bpe.h"
#include "asymkv/model/tokenizer/byte_level.h"
#include "asymkv/model/tokenizer/definition.h"
#include "asymkv/model/tokenizer/normalizer.h"
#include "asymkv/model/tokenizer/pretokenizer.h"

namespace asymkv {

using tokenizer::AddedToken;
using tokenizer::Segment;

struct Tokenizer::Impl {
  explicit Impl(tokenizer::TokenizerDefinition source);
  Impl(const Impl&) = delete;  // the sets point into `definition`
  Impl& operator=(const Impl&) = delete;

  void encode_raw(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const;

  // What the reference's decoder sees of a token.
  const std::string& spelling(size_t id) const {
    const auto it = normalized_spellings.find(id);
    return it == normalized_spellings.end() ? definition.tokens[id] : it->second;
  }

  const tokenizer::TokenizerDefinition definition;
  const tokenizer::Bpe bpe;
  const tokenizer::PreTokenizer pre_tokenizer;
  tokenizer::AddedTokenSet in_raw_text, in_normalized_text;
  std::vector<std::string> bytes;  // by id
  std::vector<bool> special;       // by id
  std::vector<bool> is_byte;       // by id: a byte token of a character-level vocabulary
  tokenizer::TokenIds added_ids;
  std::unordered_map<size_t, std::string> normalized_spellings;  // of added tokens found in normalised text
  std::string sha256;
};

Tokenizer::Impl::Impl(tokenizer::TokenizerDefinition source)
    : definition(std::move(source)),
      bpe(definition),
      pre_tokenizer(definition.steps),
      special(definition.tokens.size(), false),
      sha256(tokenizer::definition_sha256(definition)) {
  for (const AddedToken& token : definition.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    special[id] = token.special;
    added_ids.emplace(token.content, token.id);
    if (!token.normalized) {
      in_raw_text.add(token.content, token);
      continue;
    }
    std::string normalized = tokenizer::normalize(definition.normalizer, token.content);
    in_normalized_text.add(normalized, token);
    if (normalized != token.content) normalized_spellings.emplace(id, std::move(normalized));
  }
  bytes.reserve(definition.tokens.size());
  // Added tokens too: the reference's decoder maps any token back that is spelled in the byte-level alphabet.
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = spelling(id);
    const auto byte = definition.character_level ? tokenizer::byte_of_token(token) : std::nullopt;
    is_byte.push_back(byte.has_value());
    if (byte) {
      bytes.emplace_back(1, static_cast<char>(*byte));
    } else if (definition.character_level) {
      bytes.push_back(tokenizer::replace_all(token, tokenizer::kSpaceMark, " "));
    } else {
      bytes.push_back(tokenizer::from_byte_level(token).value_or(token));
    }
  }
}

void Tokenizer::Impl::encode_raw(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const {
  tokenizer::Matcher matcher;
  for (const Segment& raw : in_raw_text.split(text, options.parse_special, options.plain)) {
    if (raw.token != nullptr) {
      ids.push_back(raw.token->id);
      continue;
    }
    const std::string normalized = tokenizer::normalize(definition.normalizer, raw.text);
    const auto begin = static_cast<size_t>(raw.text.data() - text.data());
    const bool parse_special =
        options.parse_special && !tokenizer::touches(options.plain, {begin, begin + raw.text.size()});
    for (const Segment& segment : in_normalized_text.split(normalized, parse_special, {})) {
      if (segment.token != nullptr) {
        ids.push_back(segment.token->id);
        continue;
      }
      const bool begins_text = raw.text.data() == text.data() && segment.text.data() == normalized.data();
      pre_tokenizer.for_each_word(segment.text, begins_text, matcher,
                                  [&](std::string_view word) { bpe.encode_word(word, ids); });
    }
  }
}

Tokenizer Tokenizer::from_json(const Json& tokenizer, std::string_view origin, const Json& config) {
  return Tokenizer(std::make_shared<const Impl>(tokenizer::definition_from_json(tokenizer, origin, config)));
}

Tokenizer Tokenizer::from_gguf_data(const GgufTokenizerData& data, std::string_view origin) {
  return Tokenizer(std::make_shared<const Impl>(tokenizer::definition_from_gguf(data, origin)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  require_utf8(text, "the text to tokenize");
  std::vector<int32_t> ids;
  const auto& definition = impl_->definition;
  if (options.add_special) ids = definition.prefix;
  impl_->encode_raw(text, options, ids);
  if (options.add_special) ids.insert(ids.end(), definition.suffix.begin(), definition.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  if (impl_->definition.character_level) {
    StreamDecoder decoder(*this, skip_special);
    std::string text;
    for (const int32_t id : ids) text += decoder.push(id);
    return text + decoder.flush();
  }
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  return take_utf8(bytes, true);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  return impl_->definition.has_token(id) ? impl_->bytes[static_cast<size_t>(id)] : std::string();
}

int64_t Tokenizer::vocab_size() const {
  auto size = static_cast<int64_t>(impl_->definition.tokens.size());
  while (size > 0 && !impl_->definition.has_token(size - 1)) --size;
  return size;
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->definition.bos;
}

const std::vector<int32_t>& Tokenizer::eos_ids() const {
  return impl_->definition.eos;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  for (const tokenizer::TokenIds* ids : {&impl_->definition.ids, &impl_->added_ids}) {
    if (const auto it = ids->find(token); it != ids->end()) return it->second;
  }
  return std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const {
  return impl_->definition.has_token(id) && impl_->special[static_cast<size_t>(id)];
}

std::vector<std::string> Tokenizer::special_tokens() const {
  std::map<int32_t, std::string> by_id;
  for (const AddedToken& token : impl_->definition.added_tokens) {
    if (token.special) by_id.emplace(token.id, token.content);
  }
  std::vector<std::string> contents;
  for (const auto& entry : by_id) contents.push_back(entry.second);
  return contents;
}

std::string Tokenizer::sha256() const {
  return impl_->sha256;
}

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string StreamDecoder::push(int32_t id) {
  const bool skipped = skip_special_ && tokenizer_.is_special(id);
  const auto& impl = *tokenizer_.impl_;
  if (!impl.definition.character_level) {
    if (!skipped) held_ += tokenizer_.token_bytes(id);
    return take_utf8(held_, false);
  }
  if (skipped || !impl.definition.has_token(id)) return {};
  const bool is_first = std::exchange(at_first_token_, false);
  if (impl.is_byte[static_cast<size_t>(id)]) {
    held_ += tokenizer_.token_bytes(id);
    return {};
  }
  const bool drops_marks = is_first && impl.definition.first_marks_dropped;
  const std::string text =
      drops_marks ? tokenizer::replace_all(impl.spelling(static_cast<size_t>(id)), tokenizer::kSpaceMark, "")
                  : tokenizer_.token_bytes(id);
  return strip_spaces(end_byte_run() + text);
}

std::string StreamDecoder::flush() {
  if (!tokenizer_.impl_->definition.character_level) return take_utf8(held_, true);
  std::string text = strip_spaces(end_byte_run());
  at_first_token_ = true;
  num_stripped_ = 0;
  return text;
}

// A run of byte tokens that is not UTF-8 as a whole gives U+FFFD for every byte, as in the reference.
std::string StreamDecoder::end_byte_run() {
  std::string run = std::exchange(held_, {});
  if (find_invalid_utf8(run) == std::string::npos) return run;
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) text += "\xef\xbf\xbd";
  return text;
}

// The spaces may come with several tokens; what is no space ends them.
std::string StreamDecoder::strip_spaces(std::string text) {
  const int64_t most = tokenizer_.impl_->definition.stripped_spaces;
  size_t begin = 0;
  while (begin < text.size() && num_stripped_ < most) {
    if (text[begin] != ' ') {
      num_stripped_ = most;
    } else {
      ++num_stripped_;
      ++begin;
    }
  }
  text.erase(0, begin);
  return text;
}

}  // namespace asymkv
