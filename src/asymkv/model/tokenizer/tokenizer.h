#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"

namespace asymkv {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin, end;
};

struct EncodeOptions {
  // Adds what the tokenizer's own rule puts around a single text (post_processor template, GGUF add_bos_token):
  // usually BOS in front, nothing for most Qwen2 models.
  bool add_special = true;
  // Recognises special tokens ("<|im_start|>") written in the text. Set it to false for text from users that must not
  // be able to write control tokens: they are then encoded as plain characters.
  bool parse_special = true;
  // Where no special token is recognised in spite of parse_special, not even a part of one; ascending, without overlap.
  // Special tokens that are searched in normalised text (no published model's since 2023) are not recognised anywhere
  // between two other ones with such a range between them.
  std::span<const TextRange> plain = {};
};

// What a GGUF file says about its tokenizer (keys tokenizer.ggml.*), by value.
struct GgufTokenizerData {
  std::string model;                 // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;                   // tokenizer.ggml.pre: "qwen2", "llama-bpe" ...; "gpt2" only
  std::vector<std::string> tokens;   // by id, in byte-level characters or SentencePiece's spelling
  std::vector<float> scores;         // by id, the best merge has the highest; "llama" only
  std::vector<int64_t> token_types;  // by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "left right", best first
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
  std::optional<int64_t> eot;    // end of turn: generation stops there too
  std::optional<bool> add_bos;   // absent: what the kind of tokenizer does
  bool add_space_prefix = true;  // "llama" only
};

class GgufFile;
// Copies the keys out of an opened file. Throws Error{kBadInput} naming the key that is missing or of another type.
GgufTokenizerData read_gguf_tokenizer(const GgufFile& file);

// A byte-level BPE tokenizer, or a SentencePiece one of the BPE kind. Immutable and cheap to copy; all const members
// may be called from many threads.
class Tokenizer {
 public:
  // Hugging Face tokenizer.json. `config` is the parsed tokenizer_config.json beside it, or null: it names bos_token
  // and eos_token, which tokenizer.json does not. `origin` (a path) is named in errors. Throws Error{kBadInput} for a
  // malformed file, Error{kUnsupported} for a construct that is not served; both name the field.
  static Tokenizer from_json(const Json& tokenizer, std::string_view origin, const Json& config = Json());

  // Same errors as from_json; the field is the GGUF key.
  static Tokenizer from_gguf_data(const GgufTokenizerData& data, std::string_view origin);

  // Token ids of `text`, which must be valid UTF-8 (Error{kBadInput} with the byte offset otherwise). A byte that the
  // vocabulary cannot spell (SmolLM2 lacks 21) gives unk_token where the file names one, else nothing: the reference's
  // rule.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Text of the ids, always valid UTF-8: a byte sequence that is not becomes U+FFFD (one for each maximal ill-formed
  // part, as Unicode recommends). An id without a token (vocabularies are padded) adds nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The exact bytes one token stands for, perhaps a part of a UTF-8 sequence; empty for an id without a token.
  std::string token_bytes(int32_t id) const;

  // Highest id that has a token, plus one. A model's logits may be wider (padding).
  int64_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  // Ids that end a turn, in the order the source lists them; empty when it names none.
  const std::vector<int32_t>& eos_ids() const;
  // Id of a token in its published spelling ("<|im_end|>", "Ġthe").
  std::optional<int32_t> token_id(std::string_view token) const;
  bool is_special(int32_t id) const;
  // What special tokens look like in a text, by id.
  std::vector<std::string> special_tokens() const;
  // SHA-256 over everything that decides ids and text: vocabulary, merges, patterns, added tokens, template.
  std::string sha256() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// Turns ids that arrive one by one into text, holding back an incomplete UTF-8 sequence until it is complete or known
// to be ill-formed. All pieces put together equal Tokenizer::decode of all ids. One object a stream; not thread-safe.
class StreamDecoder {
 public:
  StreamDecoder(Tokenizer tokenizer, bool skip_special);
  // Text that became complete with this id; often empty.
  std::string push(int32_t id);
  // End of the stream: an incomplete sequence held back becomes U+FFFD. The object may then be used anew.
  std::string flush();

 private:
  std::string end_byte_run();
  std::string strip_spaces(std::string text);
  Tokenizer tokenizer_;
  bool skip_special_;
  // A prefix of a UTF-8 sequence, or a run of byte tokens, which is one text or as many U+FFFD as it has bytes.
  std::string held_;
  bool at_first_token_ = true;
  int64_t num_stripped_ = 0;  // spaces taken off the begin; as many as there may be once something else has come
};

// The tokenizer of a model: a folder with tokenizer.json (and tokenizer_config.json, generation_config.json where
// present), a tokenizer.json file itself, or a .gguf file. Throws Error{kBadInput} or Error{kUnsupported}.
Tokenizer load_tokenizer(const std::filesystem::path& model_path);

}  // namespace asymkv
