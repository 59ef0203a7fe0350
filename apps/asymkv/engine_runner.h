#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "asymkv/engine/generate.h"
#include "asymkv/engine/loaded_model.h"
#include "asymkv/engine/scales.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/gate/runner.h"

namespace asymkv::app {

struct EngineRunnerOptions {
  RunPath path = RunPath::kWorker;
  Prefill prefill = Prefill::kShared;
  int64_t chunk_tokens = 0;          // 0: a prompt part is one chunk
  const ScaleSet* scales = nullptr;  // for arms with fixed scales
  int64_t page_size = 16;
  int64_t pool_limit_bytes = 0;  // of the planes of all caches together (Protocol); 0: no limit
};

// Answers the gate's units with an engine: one cache per arm, one shared prefill where the path allows it, all arms
// decoded side by side.
class EngineRunner final : public CaseRunner {
 public:
  EngineRunner(LoadedModel& model, const EngineRunnerOptions& options) : model_(model), options_(options) {}
  std::vector<RawOutcome> run_unit(const Unit& unit) override;

  // Refuses before the first case runs what could not be served: makes a cache of every arm once (whatever make_cache
  // throws, naming the arm), and throws Error{kResourceExhausted} naming a case that needs more than the pool's limit.
  void check_plan(std::span<const Unit> units);
  // The cache an arm stored into, for records; null before the first unit.
  const KvCache* cache_of(ArmId arm) const;
  std::map<ArmId, KvCache*> caches();

 private:
  struct CaseTokens {
    std::vector<int32_t> context;
    std::vector<int32_t> question;
    std::string failure;
  };
  // Cases [begin, end) of a unit, answered side by side.
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    int64_t num_pages = 0;  // that each arm's cache needs
  };
  // A prompt part held in every arm's cache, kept for cases that begin with it.
  struct Prefix {
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<ArmId> arms;
    std::vector<SequencePages> sequences;         // one an arm slot
    std::vector<std::vector<float>> last_hidden;  // of the last token, one an arm slot
  };
  // One (case, arm) under way.
  struct Lane {
    int64_t case_idx = 0;
    size_t slot_idx = 0;
    SequencePages sequence;
    std::vector<float> hidden;  // of the last prompt token
  };

  CaseTokens tokenize(const Unit& unit, const Case& item) const;
  int64_t pages_for(const Unit& unit, const CaseTokens& tokens) const;
  int64_t bytes_per_page() const;  // of all caches together
  // The unit cut so that every part fits into the limit.
  std::vector<Part> cut_unit(const Unit& unit, const std::vector<CaseTokens>& tokens) const;
  void check_limit(std::span<const Unit> units) const;
  void grow_cache(ArmId arm, int64_t num_pages);
  Prefix prefill(const Unit& unit, const std::string& text, std::span<const int32_t> tokens);
  void prefill_per_arm(Prefix& prefix);
  std::vector<Lane> start_lanes(const Unit& unit, const std::vector<CaseTokens>& tokens, const Part& part);
  std::vector<Lane> take_rounded(std::vector<Lane>& lanes) const;
  void read_questions(const std::vector<CaseTokens>& tokens, std::vector<Lane>& lanes);
  void run_generation(const Unit& unit, std::vector<Lane>& lanes, std::vector<RawOutcome>& outcomes);
  void run_loss_case(const Unit& unit, int64_t case_idx, const std::vector<int32_t>& tokens,
                     std::vector<RawOutcome>& outcomes);
  void score_arms(std::span<SequencePages> sequences, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  std::vector<double>& losses);
  OwnReads prompt_reads() const;

  LoadedModel& model_;
  EngineRunnerOptions options_;
  std::map<ArmId, std::unique_ptr<KvCache>> caches_;
  std::unique_ptr<Prefix> kept_prefix_;  // shared by cases of several units (a few-shot block)
};

// Token ids of a case's context and question, each encoded by itself (case.h).
std::pair<std::vector<int32_t>, std::vector<int32_t>> encode_case(const Tokenizer& tokenizer, const Case& item);
}  // namespace asymkv::app
