#include "run_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <limits>
#include <span>

#include "asymkv/base/interrupt.h"

namespace asymkv::app {
namespace {

// A case that does not say how long it is counts as one of this many tokens.
constexpr int64_t kUnknownTokens = 1024;

// How many of the cases make the largest batch: a power of two, so that every smaller one divides it.
int64_t largest_batch(const std::vector<Case>& cases) {
  int64_t longest = 0;
  for (const Case& item : cases) longest = std::max(longest, item.length > 0 ? item.length : kUnknownTokens);
  const int64_t fit = std::max<int64_t>(1, CostMeter::kMaxTokens / longest);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::min(fit, std::ssize(cases)))));
}

Unit native_unit(const Unit& like, std::span<const Case> cases) {
  Unit unit;
  unit.panel = like.panel;
  unit.kind = like.kind;
  unit.generation = like.generation;
  unit.cases.assign(cases.begin(), cases.end());
  ArmSlot slot;
  for (int64_t i = 0; i < std::ssize(unit.cases); ++i) slot.order.push_back(i);
  unit.slots = {slot};
  return unit;
}

}  // namespace

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<RawOutcome> CostMeter::run_unit(const Unit& unit) {
  const double start = clock_();
  std::vector<RawOutcome> outcomes = runner_.run_unit(unit);
  const double seconds = clock_() - start;
  // A run of several looks comes back to each panel.
  auto found = std::ranges::find(panels_, unit.panel, [](const Panel& panel) { return panel.first.panel; });
  if (found == panels_.end()) {
    found = panels_.insert(panels_.end(), {unit, 0, 0});
    found->first.cases.clear();
  }
  Panel& panel = *found;
  panel.num_cases += std::ssize(unit.cases);
  panel.seconds += seconds;
  for (const Case& item : unit.cases) {
    if (std::ssize(panel.first.cases) < kMaxCases) panel.first.cases.push_back(item);
  }
  return outcomes;
}

double CostMeter::time_native(const Unit& unit, CaseRunner& native) const {
  return run_unless_interrupted("the run is finished: only its cost was being measured", [&] {
    const double start = clock_();
    native.run_unit(unit);
    return clock_() - start;
  });
}

PanelCost CostMeter::measure(const Panel& panel, CaseRunner& native) const {
  PanelCost cost;
  cost.panel = panel.first.panel;
  cost.arms = std::ssize(panel.first.slots);
  cost.seconds_per_case = panel.seconds / static_cast<double>(panel.num_cases);
  cost.native_seconds_per_case = std::numeric_limits<double>::infinity();
  const int64_t largest = largest_batch(panel.first.cases);
  const auto cases = std::span(panel.first.cases).first(static_cast<size_t>(largest));
  const auto has_first_context = [&](const Case& item) { return item.context == cases.front().context; };
  const bool shared = largest > 1 && std::ranges::all_of(cases, has_first_context);
  if (shared) time_native(native_unit(panel.first, cases), native);
  // The largest first: the cache grows once, and what all cases share stays in it.
  for (int64_t batch = largest; batch >= 1; batch /= 2) {
    double seconds = 0;
    for (int64_t begin = 0; begin < largest; begin += batch) {
      const auto part = cases.subspan(static_cast<size_t>(begin), static_cast<size_t>(batch));
      seconds += time_native(native_unit(panel.first, part), native);
    }
    const double per_case = seconds / static_cast<double>(largest);
    if (per_case >= cost.native_seconds_per_case) continue;
    cost.native_seconds_per_case = per_case;
    cost.native_batch = batch;
  }
  return cost;
}

std::vector<PanelCost> CostMeter::against_native(CaseRunner& native) const {
  std::vector<PanelCost> costs;
  for (const Panel& panel : panels_) costs.push_back(measure(panel, native));
  return costs;
}

std::string cost_lines(const std::vector<PanelCost>& costs) {
  std::string lines;
  for (const PanelCost& cost : costs) {
    lines += fmt::format("{}: {} arms took {:.1f}x a native-only run (best batch {})\n", cost.panel, cost.arms,
                         cost.ratio(), cost.native_batch);
  }
  return lines;
}

Json cost_to_json(const std::vector<PanelCost>& costs) {
  Json json = Json::object();
  for (const PanelCost& cost : costs) {
    json[cost.panel] = {{"arms", cost.arms},
                        {"seconds_per_case", cost.seconds_per_case},
                        {"native_seconds_per_case", cost.native_seconds_per_case},
                        {"native_batch", cost.native_batch},
                        {"ratio", cost.ratio()}};
  }
  return json;
}

}  // namespace asymkv::app
