#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/model/tokenizer/tokenizer.h"

namespace asymkv::tokenizer {

// Transparent hash: lookups by string_view make no string.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// A token that is cut out of the text before normalisation and pre-tokenisation.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // dropped by skip_special, plain text without parse_special
  bool normalized = false;   // searched in the normalised text instead of the raw one
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // and after it
  bool single_word = false;  // only between word boundaries
};

// What a match becomes, in the words of tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One step of normalisation; steps run in order on every part of the text between added tokens.
enum class NormalizerStep {
  kNfc,
  kPrependMark,  // U+2581 in front of a part that is not empty
  kMarkSpaces,   // every space becomes U+2581
};

// One step of pre-tokenisation; steps run in order, each on every piece of the step before.
struct PreTokenizerStep {
  // The space marks spell spaces as U+2581 and put one in front of a piece that has none there: never, only where the
  // piece begins the whole text, or always.
  enum class Kind { kSplitRegex, kSplitLiteral, kPrefixSpace, kSpaceMark, kFirstSpaceMark, kEachSpaceMark };
  Kind kind = Kind::kSplitRegex;
  std::string pattern;  // Oniguruma's dialect, or the literal
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches and gaps change places
  std::string field;    // where the pattern was written, for errors
};

struct MergeRule {
  int32_t left, right, merged;
};

// Everything that decides token ids, whatever file it came from.
struct TokenizerDefinition {
  std::string origin;
  std::vector<std::string> tokens;  // by id, published spelling; empty for an id without a token
  TokenIds ids;                     // the inverse, without added tokens that the model does not have
  std::vector<MergeRule> merges;    // best first
  std::optional<int32_t> unknown;   // for a byte that has no token; without it such a byte is dropped
  bool fuse_unknown = false;        // a run of them gives one token
  bool ignore_merges = false;       // a word that is a token is not merged but looked up
  std::vector<NormalizerStep> normalizer;
  // SentencePiece's way instead of byte-level BPE: a space is spelled U+2581, symbols are characters, and a character
  // without a token is spelled in tokens "<0x00>" .. "<0xFF>".
  bool character_level = false;
  // character_level only, of decoded text: so many spaces at most are taken off its begin; the space marks of the first
  // token are dropped.
  int64_t stripped_spaces = 0;
  bool first_marks_dropped = false;
  std::vector<PreTokenizerStep> steps;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // put around a text by add_special
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;

  bool has_token(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(tokens.size()) && !tokens[static_cast<size_t>(id)].empty();
  }
};

// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex stands for.
extern const char* const kGpt2Pattern;

// SentencePiece's spelling of a space (U+2581).
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";
// The spelling of a byte in a character-level vocabulary: "<0x0A>".
std::string byte_token(unsigned byte);
// The byte that "<0x0A>" spells.
std::optional<unsigned char> byte_of_token(std::string_view token);

// Both throw Error{kBadInput} or Error{kUnsupported} naming origin and field.
TokenizerDefinition definition_from_json(const Json& file, std::string_view origin, const Json& config);
TokenizerDefinition definition_from_gguf(const GgufTokenizerData& data, std::string_view origin);

// Splits "left right" at its only space; throws Error{kBadInput} naming the rule. Appends the rule.
void add_merge(TokenizerDefinition& definition, std::string_view left, std::string_view right, size_t idx);
void add_merge_line(TokenizerDefinition& definition, std::string_view line, size_t idx);

// SHA-256 over all fields but `origin` and the `field` names.
std::string definition_sha256(const TokenizerDefinition& definition);

}  // namespace asymkv::tokenizer
