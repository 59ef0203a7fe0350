#pragma once

#include <string_view>
#include <vector>

#include "asymkv/model/tokenizer/definition.h"
#include "asymkv/model/tokenizer/pattern.h"

namespace asymkv::tokenizer {

// Cuts text into the words that merges never cross.
class PreTokenizer {
 public:
  // Compiles the patterns; throws as Pattern does.
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // Calls `visit(word)` for every word of well-formed UTF-8, in order. The views live for the call only.
  template <typename Visit>
  void for_each_word(std::string_view text, Matcher& matcher, Visit visit) const {
    Pieces pieces;
    split(text, matcher, pieces);
    for (const std::string_view word : pieces.words) visit(word);
  }

 private:
  struct Step {
    PreTokenizerStep definition;
    std::optional<Pattern> pattern;  // none for kPrefixSpace
  };
  struct Pieces {
    std::vector<std::string_view> words;
    std::vector<std::unique_ptr<std::string>> changed;  // words that are no part of the text: a space put in front
  };
  void split(std::string_view text, Matcher& matcher, Pieces& pieces) const;

  std::vector<Step> steps_;
};

}  // namespace asymkv::tokenizer
