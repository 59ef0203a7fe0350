#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "asymkv/engine/loaded_model.h"
#include "asymkv/engine/sampler.h"
#include "asymkv/kv/cache.h"

namespace asymkv {

enum class FinishReason { kStop, kLength };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length"

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  bool ignore_eos = false;
  OwnReads prompt_reads = OwnReads::kFresh;  // kStored: the reference path
  DType native_dtype = DType::kBF16;
};

struct Generation {
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kLength;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
};

// The token that follows a chunk, chosen where the logits are.
// Throws Error{kBadInput} for a logit that is not finite.
int32_t next_token(LoadedModel& model, const ForwardChunk& chunk, Sampler& sampler, DType native_dtype);

// One completion of `prompt` in an empty `sequence`: prefill in one chunk, then token by token from the stored bytes.
// on_token sees each new token at once. An end-of-sequence token ends it and is the last of token_ids.
// Throws Error{kUsage} for an empty prompt or one that leaves no room, Error{kInterrupted} between tokens.
Generation generate(LoadedModel& model, SequencePages& sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options, const std::function<void(int32_t)>& on_token);

// One of many sequences that decode side by side.
struct DecodeSlot {
  SequencePages* sequence = nullptr;  // holds every token before `next`
  int32_t next = 0;                   // first new token, chosen from the prefill's logits
  std::vector<int32_t> token_ids;     // filled: next and what follows, without the end-of-sequence token
  FinishReason finish_reason = FinishReason::kLength;
  bool ended_by_token = false;  // an end-of-sequence token (not among token_ids) ended it
  std::string failure;          // "non-finite logits" ended it; empty otherwise
};

struct DecodeLimits {
  int64_t max_tokens = 0;
  std::vector<std::string> stop;  // a sequence ends once its text contains one of these
  DType native_dtype = DType::kBF16;
};

// Greedy decoding of all slots, one forward pass a step for those not finished; weights are read once a step. Throws
// Error{kInterrupted} before a step.
void decode_greedy(LoadedModel& model, std::span<DecodeSlot> slots, const DecodeLimits& limits);

}  // namespace asymkv
