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

  // Calls `visit(word)` for every word of well-formed UTF-8, in order. The views live for the call only. `begins_text`:
  // nothing of the whole text was cut off in front.
  template <typename Visit>
  void for_each_word(std::string_view text, bool begins_text, Matcher& matcher, Visit visit) const {
    Pieces pieces;
    split(text, begins_text, matcher, pieces);
    for (const std::string_view word : pieces.words) visit(word);
  }

 private:
  struct Step {
    PreTokenizerStep definition;
    std::optional<Pattern> pattern;  // none where the step only spells spaces
  };
  struct Pieces {
    std::vector<std::string_view> words;
    std::vector<std::unique_ptr<std::string>> changed;  // words that are no part of the text: spaces spelled anew
  };
  void split(std::string_view text, bool begins_text, Matcher& matcher, Pieces& pieces) const;

  std::vector<Step> steps_;
};

}  // namespace asymkv::tokenizer
