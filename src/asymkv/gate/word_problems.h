#pragma once

#include <cstdint>
#include <string>

#include "asymkv/gate/random.h"

namespace asymkv {

// A problem of two or three steps over small integers, of exactly the shape the embedded models were trained on.
struct WordProblem {
  std::string prompt;    // "Question: ...\nAnswer:"
  std::string solution;  // " 3 + 4 = 7.\n#### 7"
  int64_t answer = 0;
};

// Prompt and solution together are at most 254 bytes, as in training.
WordProblem make_word_problem(Random& random);

}  // namespace asymkv
