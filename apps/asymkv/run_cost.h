#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/runner.h"

namespace asymkv::app {

// Seconds since some moment. Processor seconds of the whole process are what CPU kernels cost, whoever else computes.
using CostClock = std::function<double()>;
double processor_seconds();
double wall_seconds();

// What all arms of one panel took beside a run of native alone.
struct PanelCost {
  std::string panel;
  int64_t arms = 0;                    // answers a case at the first look, N2 included
  double seconds_per_case = 0;         // all arms, over the cases that this process answered
  double native_seconds_per_case = 0;  // native alone, at its best batch size
  int64_t native_batch = 0;            // cases answered side by side there
  double ratio() const { return seconds_per_case / native_seconds_per_case; }
};

// Times the units that pass through it, and afterwards native alone on the same cases.
class CostMeter final : public CaseRunner {
 public:
  CostMeter(CaseRunner& runner, CostClock clock) : runner_(runner), clock_(std::move(clock)) {}
  void begin(const RunSummary& opened) override { runner_.begin(opened); }
  std::vector<RawOutcome> run_unit(const Unit& unit) override;

  // Has `native` answer the first cases of every panel with arm N alone, in batches of 1, 2, 4, ... as many as
  // kMaxCases and kMaxTokens allow, and takes the best. A prompt part that all cases begin with is prefilled before the
  // clock runs, as a long run does it once. Panels of which this process answered nothing are left out. Throws
  // Error{kInterrupted} between units and whatever the runner throws.
  std::vector<PanelCost> against_native(CaseRunner& native) const;

  static constexpr int64_t kMaxCases = 64;        // of a batch
  static constexpr int64_t kMaxTokens = 1 << 16;  // of a batch's prompts: bounds the cache

 private:
  struct Panel {
    Unit first;             // its first cases of this process, at most kMaxCases
    int64_t num_cases = 0;  // all of them
    double seconds = 0;
  };
  PanelCost measure(const Panel& panel, CaseRunner& native) const;
  double time_native(const Unit& unit, CaseRunner& native) const;

  CaseRunner& runner_;
  CostClock clock_;
  std::vector<Panel> panels_;
};

// "math: 8 arms took 1.7x a native-only run (best batch 32)", one line a panel.
std::string cost_lines(const std::vector<PanelCost>& costs);
// {PANEL: {arms, seconds_per_case, native_seconds_per_case, native_batch, ratio}}
Json cost_to_json(const std::vector<PanelCost>& costs);

}  // namespace asymkv::app
