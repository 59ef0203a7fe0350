#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/gate/arm.h"
#include "asymkv/gate/case.h"

namespace asymkv {

struct RunSummary;  // run_folder.h

// How a generated answer ends. Decoding is greedy, always.
struct GenerationLimits {
  int64_t token_limit = 0;         // most tokens to generate
  std::vector<std::string> stops;  // text that ends the answer; the text up to and without it is kept
};

// One arm's place in a unit. `order` is a permutation of the unit's cases: the order in which this arm's copies stand
// in the batch. It is the identity for every arm but N2, which is rotated by one: a result that depends on a case's
// place in the batch shows up as discordance between N and N2.
struct ArmSlot {
  ArmId arm = ArmId::kN;
  std::vector<int64_t> order;
};

// The smallest piece of work that a run commits: some cases of one panel, answered by all arms side by side. The cut
// into units depends on protocol and arms alone, so a resumed run repeats identical batches.
struct Unit {
  int64_t index = 0;     // place in the whole run's plan, from 0
  int64_t look_idx = 0;  // the look it belongs to, from 0
  std::string panel;
  PanelKind kind = PanelKind::kRetrieval;
  std::vector<Case> cases;
  std::vector<ArmSlot> slots;   // N first
  GenerationLimits generation;  // retrieval and math
};

// One (case, arm) of a unit, unjudged: parsing and scoring are the gate's work.
struct RawOutcome {
  int64_t case_idx = 0;  // into Unit::cases
  ArmId arm = ArmId::kN;
  std::string failure;        // why there is no answer; empty if there is one
  std::string text;           // generated text without special tokens and without the stop string
  int64_t tokens = 0;         // generated tokens, an end token included
  bool truncated = false;     // the token limit ended it
  double nll = 0;             // loss: mean over the scored tokens, nats
  int64_t scored_tokens = 0;  // loss: how many were scored, equal to Case::scored_tokens
};

// What the gate asks of an engine.
//
// Retrieval and math: BOS (where the model has one) and the context are one prefill chunk, the question (if any) is the
// next one and reads the context from stored bytes; then greedy decoding. On the worker path with shared prefill the
// context's hidden states are computed once and written once per slot. Cases with equal contexts (a few-shot block) may
// share one prefill as well.
// Loss: the text's tokens, BOS included, are cut to Case::length; all but the last scored_tokens are one prefill chunk,
// and the scored part reads every key and value, its own included, from stored bytes, as decoding token by token would.
//
// Equal units must give equal results. A case that cannot be served (too long, a non-finite logit) is a RawOutcome with
// `failure`; only what ends the whole run (out of memory, a broken model) is thrown.
class CaseRunner {
 public:
  virtual ~CaseRunner() = default;
  // Once, after the folder was opened and brought to its last finished unit, before the first unit is asked.
  virtual void begin(const RunSummary& /*opened*/) {}
  // Exactly one RawOutcome per case and slot, in any order.
  virtual std::vector<RawOutcome> run_unit(const Unit& unit) = 0;
};

}  // namespace asymkv
