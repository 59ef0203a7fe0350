#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/arm.h"

namespace asymkv {

// What one arm made of one case. A case that errored or was never answered is failed, not wrong: it is counted apart.
struct Outcome {
  std::string case_id;
  std::string panel;
  ArmId arm = ArmId::kN;
  std::string text;          // generated text, untouched; empty for loss
  std::string parsed;        // answer found in it by the protocol's deciding parser; empty if none
  bool correct = false;      // by that parser; always false for loss and for failed cases
  std::string alt_parsed;    // math: what the other parser (strict or flexible) found
  bool alt_correct = false;  // math: by the other parser
  bool failed = false;
  std::string failure;        // the reason, empty unless failed
  int64_t tokens = 0;         // generated tokens
  bool truncated = false;     // stopped by the token limit, not by a stop string or end token
  double nll = 0;             // loss: mean negative log-likelihood per scored token, nats
  int64_t scored_tokens = 0;  // loss: number of scored targets, > 0 unless failed

  bool operator==(const Outcome&) const = default;
};

Json outcome_to_json(const Outcome& value);
// Strict: a missing, unknown, mistyped or contradictory field is an Error{kBadInput} naming `origin` and the field.
Outcome outcome_from_json(const Json& json, std::string_view origin);

// outcomes/ARM.jsonl: one canonical JSON line per case. Throws Error{kBadInput} naming file and line; also for a
// repeated case, a line of another arm than `arm`, and a torn last line. Changes nothing on disk.
std::vector<Outcome> read_outcomes(const std::filesystem::path& path, ArmId arm);

}  // namespace asymkv
