#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/gate/random.h"

namespace asymkv {

// Text of exactly the shape that the embedded byte-level models were trained on (models/README.md): a sentence grammar,
// needles hidden in it, and questions. Prompts of another shape get no answer from them.

// One sentence with its final ". " or ".\n".
std::string embedded_sentence(Random& random);

// Sentences of exactly `num_bytes` > 0 bytes in all. The first one has lost its head, as in training.
std::vector<std::string> embedded_filler(Random& random, int64_t num_bytes);

// `count` distinct names ("amber falcon"). One in ten adjective-noun pairs was held out of training;
// `first_held_out` makes the first name one of those, and any other name may be either.
std::vector<std::string> embedded_names(Random& random, int64_t count, bool first_held_out);

std::string embedded_code(Random& random);  // five digits, no leading zero
std::string embedded_needle(const std::string& name, const std::string& code);
// Ends in "Answer: ": the code follows directly.
std::string embedded_question(const std::string& name);

}  // namespace asymkv
