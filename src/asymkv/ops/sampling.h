#pragma once

#include <cstdint>
#include <span>

namespace asymkv {

// How a token is drawn from logits.
struct SamplingLaw {
  double temperature = 0.0;  // finite, at least 0; 0: the largest
  double top_p = 1.0;        // in (0, 1]: smallest set of tokens whose probability reaches it
  int64_t top_k = 0;         // 0: all
};

// Index of the largest logit; the lowest index of equals. There is one.
int32_t argmax(std::span<const float> logits);

// Finite logits in falling order, the lower id first of equals, weigh exp(logit / temperature). Of the first top_k
// those are kept whose weights before them do not reach top_p of the whole; the token is the one within whose weight
// `uniform` of [0, 1) times the kept sum falls. Temperature 0: the first.
int32_t draw_token(std::span<const float> logits, const SamplingLaw& law, double uniform);

}  // namespace asymkv
