#include <algorithm>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/added_tokens.h"
#include "asymkv/model/tokenizer/byte_level.h"
#include "asymkv/model/tokenizer/definition.h"
#include "asymkv/model/tokenizer/json_steps.h"

namespace asymkv::tokenizer {
namespace {

// Ids may have holes (published vocabularies do), but a forged id must not decide how much memory is taken.
constexpr size_t kMaxIdsPerToken = 4;
constexpr size_t kSpareIds = 1024;

void refuse_text(const Json& model, const char* field, const std::string& where) {
  if (!string_or(model, field, "", where).empty()) {
    throw_unsupported("{}: field \"{}\" is not supported, it must be null or empty", where, field);
  }
}

void check_model_kind(const Json& model, const std::string& where) {
  const std::string type = string_or(model, "type", "BPE", where);  // files of 2020 do not name it
  if (type != "BPE") throw_unsupported("{}: type \"{}\" is not supported, only \"BPE\" is", where, type);
  check_keys(model,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"},
             where);
  if (number_or(model, "dropout", 0, where) != 0) throw_unsupported("{}: dropout is not supported", where);
  refuse_text(model, "continuing_subword_prefix", where);
  refuse_text(model, "end_of_word_suffix", where);
}

void set_token(TokenizerDefinition& definition, const std::string& token, int64_t id, const std::string& where) {
  if (token.empty()) throw_unsupported("{}: an empty token is not supported", where);
  std::string& place = definition.tokens[static_cast<size_t>(id)];
  if (!place.empty() && place != token) {
    throw_bad_input("{}: \"{}\" and \"{}\" both have the id {}", where, place, token, id);
  }
  place = token;
}

void read_vocab(const Json& model, const std::string& where, TokenizerDefinition& definition) {
  const Json& vocab = require_field(model, "vocab", where);
  if (!vocab.is_object()) throw_bad_input("{}: field \"vocab\" must be an object, found {}", where, vocab.type_name());
  const auto max_ids = static_cast<int64_t>(vocab.size() * kMaxIdsPerToken + kSpareIds);
  const std::string vocab_where = where + ".vocab";
  for (const auto& [token, value] : vocab.items()) {
    const int64_t id = value.is_number_integer() ? require_int(vocab, token, vocab_where) : -1;
    if (id < 0 || id >= max_ids) {
      throw_bad_input("{}: the id of \"{}\" must be an integer from 0 to {} for {} tokens, found {}", vocab_where,
                      token, max_ids - 1, vocab.size(), short_dump(value));
    }
    if (static_cast<size_t>(id) >= definition.tokens.size()) definition.tokens.resize(static_cast<size_t>(id) + 1);
    set_token(definition, token, id, vocab_where);
    definition.ids.emplace(token, static_cast<int32_t>(id));
  }
}

// Both published forms: "left right", and since 2024 ["left", "right"].
void read_merges(const Json& model, const std::string& where, TokenizerDefinition& definition) {
  const Json& merges = require_array(model, "merges", where);
  definition.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& rule = merges[i];
    if (rule.is_string()) {
      const auto& line = rule.get_ref<const std::string&>();
      if (!line.starts_with("#version")) add_merge_line(definition, line, i);
    } else if (rule.is_array() && rule.size() == 2 && rule[0].is_string() && rule[1].is_string()) {
      add_merge(definition, rule[0].get_ref<const std::string&>(), rule[1].get_ref<const std::string&>(), i);
    } else {
      throw_bad_input("{}: merges[{}] must be \"left right\" or [\"left\", \"right\"], found {}", where, i,
                      short_dump(rule));
    }
  }
}

void read_model(const Json& model, const std::string& where, TokenizerDefinition& definition) {
  if (!model.is_object()) throw_bad_input("{} must be an object, found {}", where, model.type_name());
  check_model_kind(model, where);
  read_vocab(model, where, definition);
  read_merges(model, where, definition);
  definition.character_level = bool_or(model, "byte_fallback", false, where);
  definition.fuse_unknown = bool_or(model, "fuse_unk", false, where);
  definition.ignore_merges = bool_or(model, "ignore_merges", false, where);
  const std::string unknown = string_or(model, "unk_token", "", where);
  if (unknown.empty()) return;
  const auto it = definition.ids.find(unknown);
  if (it == definition.ids.end()) throw_bad_input("{}: unk_token \"{}\" is not in the vocabulary", where, unknown);
  definition.unknown = it->second;
}

AddedToken read_added_token(const Json& entry, const std::string& where) {
  check_keys(entry, {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"}, where);
  AddedToken token;
  token.content = require_string(entry, "content", where);
  token.special = bool_or(entry, "special", false, where);
  token.normalized = bool_or(entry, "normalized", !token.special, where);
  token.lstrip = bool_or(entry, "lstrip", false, where);
  token.rstrip = bool_or(entry, "rstrip", false, where);
  token.single_word = bool_or(entry, "single_word", false, where);
  if (token.content.empty()) throw_bad_input("{}: field \"content\" is empty", where);
  if (token.content.size() > kMaxAddedTokenBytes) {
    throw_unsupported("{}: field \"content\" has {} bytes, at most {} are supported", where, token.content.size(),
                      kMaxAddedTokenBytes);
  }
  return token;
}

// The reference numbers added tokens itself (the vocabulary's id if it has the token, else behind the highest) and
// only warns when the file says otherwise. A file whose ids depend on the reader is refused.
void read_added_tokens(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  if (!has_value(file, "added_tokens")) return;
  const Json& entries = require_array(file, "added_tokens", where);
  auto next_id = static_cast<int64_t>(definition.ids.size());
  std::set<std::string> seen;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string entry_where = fmt::format("{}: added_tokens[{}]", where, i);
    AddedToken token = read_added_token(entries[i], entry_where);
    if (!seen.insert(token.content).second) throw_bad_input("{}: \"{}\" is there twice", entry_where, token.content);
    const int64_t id = require_int(entries[i], "id", entry_where);
    const auto known = definition.ids.find(token.content);
    const int64_t expected = known == definition.ids.end() ? next_id : known->second;
    if (id != expected) {
      throw_bad_input("{}: \"{}\" has the id {}, expected {}", entry_where, token.content, id, expected);
    }
    // The last id given to an added token, whether or not the model has it, decides where numbering goes on.
    next_id = std::max(next_id, id + 1);
    if (static_cast<size_t>(id) >= definition.tokens.size()) definition.tokens.resize(static_cast<size_t>(id) + 1);
    set_token(definition, token.content, id, entry_where);
    token.id = static_cast<int32_t>(id);
    definition.added_tokens.push_back(std::move(token));
  }
}

std::optional<int32_t> find_token(const TokenizerDefinition& definition, const std::string& content) {
  if (const auto it = definition.ids.find(content); it != definition.ids.end()) return it->second;
  const auto added = std::ranges::find(definition.added_tokens, content, &AddedToken::content);
  if (added == definition.added_tokens.end()) return std::nullopt;
  return added->id;
}

// "bos_token": a string, an object with "content", or null.
std::optional<int32_t> read_named_token(const Json& config, const char* field, const TokenizerDefinition& definition) {
  if (!has_value(config, field)) return std::nullopt;
  const Json& value = config[field];
  const std::string where = fmt::format("{}: tokenizer_config field \"{}\"", definition.origin, field);
  const std::string content =
      value.is_object() ? require_string(value, "content", where) : require_string(config, field, where);
  const auto id = find_token(definition, content);
  if (!id) throw_bad_input("{}: \"{}\" is not a token", where, content);
  return id;
}

void read_eos_ids(const Json& config, TokenizerDefinition& definition) {
  if (!has_value(config, "eos_token_id")) return;
  const Json& value = config["eos_token_id"];
  const size_t count = value.is_array() ? value.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const Json& entry = value.is_array() ? value[i] : value;
    const int64_t id = entry.is_number_integer() ? entry.get<int64_t>() : -1;
    if (!definition.has_token(id)) {
      throw_bad_input("{}: eos_token_id {} is not the id of a token", definition.origin, short_dump(entry));
    }
    definition.eos.push_back(static_cast<int32_t>(id));
  }
}

void read_config(const Json& config, TokenizerDefinition& definition) {
  if (!definition.prefix.empty()) definition.bos = definition.prefix.front();
  if (config.is_null()) return;
  if (!config.is_object()) {
    throw_bad_input("{}: the tokenizer_config must be an object, found {}", definition.origin, config.type_name());
  }
  if (const auto bos = read_named_token(config, "bos_token", definition)) definition.bos = bos;
  if (const auto eos = read_named_token(config, "eos_token", definition)) definition.eos.push_back(*eos);
  read_eos_ids(config, definition);
  std::vector<int32_t> unique;
  for (const int32_t id : definition.eos) {
    if (std::ranges::find(unique, id) == unique.end()) unique.push_back(id);
  }
  definition.eos = std::move(unique);
}

}  // namespace

TokenizerDefinition definition_from_json(const Json& file, std::string_view origin, const Json& config) {
  TokenizerDefinition definition;
  definition.origin = origin;
  const std::string where(origin);
  // "truncation" and "padding" are what the exporter last asked for, no part of the vocabulary: not applied here, and
  // transformers switches them off too.
  check_keys(file,
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
              "decoder", "model"},
             where);
  if (string_or(file, "version", "1.0", where) != "1.0") {
    throw_unsupported("{}: version \"{}\" is not supported, only \"1.0\" is", where,
                      string_or(file, "version", "", ""));
  }
  read_model(require_field(file, "model", where), where + ": model", definition);
  read_added_tokens(file, where, definition);
  read_normalizer(file, where, definition);
  read_pre_tokenizer(file, where, definition);
  read_post_processor(file, where, definition);
  read_decoder(file, where, definition);
  read_config(config, definition);
  return definition;
}

}  // namespace asymkv::tokenizer
