#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "asymkv/model/tokenizer/definition.h"

namespace asymkv::tokenizer {

// Longest added token that is served; it bounds the search time per byte of text.
inline constexpr size_t kMaxAddedTokenBytes = 1024;

// A part of a text: an added token, or plain text.
struct Segment {
  std::string_view text;
  const AddedToken* token = nullptr;  // null for plain text
};

// Whether a range, none of them empty, shares a byte with one of `ranges` (ascending, without overlap).
bool touches(std::span<const TextRange> ranges, TextRange range);

// Finds a set of added tokens: leftmost, then longest, then on behind the match (also behind one that is passed over).
class AddedTokenSet {
 public:
  AddedTokenSet() : nodes_(1) {}
  // `spelling` is what is searched for: the content, normalised if the token asks for it. The token must outlive this.
  // Of two tokens with one spelling the first is found.
  void add(std::string_view spelling, const AddedToken& token);
  bool empty() const { return nodes_.size() == 1; }

  // Parts of well-formed UTF-8 in order, none of them empty but for the white space an lstrip token swallowed.
  // Without `parse_special` special tokens are plain text; so are those that share a byte with a range of `plain`.
  std::vector<Segment> split(std::string_view text, bool parse_special, std::span<const TextRange> plain) const;

 private:
  struct Node {
    std::unordered_map<char, uint32_t> next;
    const AddedToken* token = nullptr;
  };
  struct Found {
    const AddedToken* token = nullptr;
    size_t length = 0;
  };
  Found longest_at(std::string_view text, size_t pos) const;

  std::vector<Node> nodes_;  // a trie; the first is the root
  bool is_first_byte_[256] = {};
};

}  // namespace asymkv::tokenizer
