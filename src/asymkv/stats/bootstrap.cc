#include "asymkv/stats/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/stats/internal.h"
#include "asymkv/stats/random.h"

namespace asymkv::stats {
namespace {

constexpr int64_t kMaxResamples = 10'000'000;
constexpr int64_t kResamplesPerTask = 512;  // some tenths of a millisecond of work for a parallel loop's iteration

void check_options(const BootstrapOptions& options) {
  internal::check_alpha(options.alpha);
  if (options.resamples < 1 || options.resamples > kMaxResamples) {
    throw_usage("resamples must be between 1 and {}, but it is {}", kMaxResamples, options.resamples);
  }
  if (static_cast<double>(options.resamples) * options.alpha < 1.0) {
    throw_usage("{} resamples are too few for alpha = {}: take at least {}", options.resamples, options.alpha,
                std::ceil(1.0 / options.alpha));
  }
}

void check_documents(std::span<const PairedLoss> documents) {
  if (documents.size() < 2) {
    throw_usage("a loss ratio over documents needs at least 2 of them, but there are {}", documents.size());
  }
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto [native, candidate] = documents[i];
    if (!(native >= kMinNativeLoss && native <= kMaxLoss)) {
      throw_usage("document {}: the native loss must lie between {} and {} nats, but it is {}", i + 1, kMinNativeLoss,
                  kMaxLoss, native);
    }
    if (!(candidate >= 0.0 && candidate <= kMaxLoss)) {
      throw_usage("document {}: the candidate loss must lie between 0 and {} nats, but it is {}", i + 1, kMaxLoss,
                  candidate);
    }
  }
}

double neighbour(double value, int steps) {
  const double target = steps < 0 ? 0.0 : std::numeric_limits<double>::infinity();
  for (int i = 0; i < std::abs(steps); ++i) value = std::nextafter(value, target);
  return value;
}

// The constant r if every candidate / native is r up to rounding. A loss that is the rounded product r * native gives a
// quotient one or two units off r; among the doubles in reach the one with the shortest decimal form is taken, which
// is the r that somebody multiplied by or wrote down.
std::optional<double> constant_ratio(std::span<const PairedLoss> documents) {
  double lowest = std::numeric_limits<double>::infinity(), highest = 0.0;
  for (const auto& [native, candidate] : documents) {
    const double quotient = candidate / native;
    lowest = std::min(lowest, quotient);
    highest = std::max(highest, quotient);
  }
  if (neighbour(lowest, 4) < highest) return std::nullopt;
  double best = lowest;
  for (double r = neighbour(lowest, -2); r <= neighbour(highest, 2); r = neighbour(r, 1)) {
    if (fmt::format("{}", r).size() < fmt::format("{}", best).size()) best = r;
  }
  return best;
}

// Running sums; the difference is summed by itself, since the ratio is close to 1.
struct Sums {
  double native = 0.0;
  double delta = 0.0;
  void add(const PairedLoss& document) {
    native += document.native;
    delta += document.candidate - document.native;
  }
  double ratio_minus_1() const { return delta / native; }
};

std::vector<double> resample(std::span<const PairedLoss> documents, const BootstrapOptions& options) {
  std::vector<double> ratios(static_cast<size_t>(options.resamples));
  const int64_t tasks = (options.resamples + kResamplesPerTask - 1) / kResamplesPerTask;
  parallel_for(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(options.resamples, (task + 1) * kResamplesPerTask);
    for (int64_t r = task * kResamplesPerTask; r < end; ++r) {
      SplitMix64 random(options.seed, static_cast<uint64_t>(r));
      Sums sums;
      for (size_t i = 0; i < documents.size(); ++i) sums.add(documents[random.below(documents.size())]);
      ratios[static_cast<size_t>(r)] = sums.ratio_minus_1();
    }
  });
  return ratios;
}

double largest_delta_share(std::span<const PairedLoss> documents) {
  double largest = 0.0, total = 0.0;
  for (const auto& [native, candidate] : documents) {
    const double delta = std::abs(candidate - native);
    largest = std::max(largest, delta);
    total += delta;
  }
  return total > 0.0 ? largest / total : 0.0;
}

}  // namespace

LossRatio bootstrap_loss_ratio(std::span<const PairedLoss> documents, const BootstrapOptions& options) {
  check_options(options);
  check_documents(documents);
  // Sorted, so that the order of the input can change neither the draws nor the rounding of a sum.
  std::vector<PairedLoss> sorted(documents.begin(), documents.end());
  std::sort(sorted.begin(), sorted.end(), [](const PairedLoss& a, const PairedLoss& b) {
    return a.native != b.native ? a.native < b.native : a.candidate < b.candidate;
  });
  LossRatio result{};
  result.largest_delta_share = largest_delta_share(sorted);
  result.documents = static_cast<int64_t>(sorted.size());
  result.options = options;
  if (const auto r = constant_ratio(sorted)) {
    result.ratio_minus_1 = result.lower = result.upper = *r - 1.0;
    return result;
  }
  Sums all;
  for (const PairedLoss& document : sorted) all.add(document);
  result.ratio_minus_1 = all.ratio_minus_1();
  std::vector<double> ratios = resample(sorted, options);
  std::sort(ratios.begin(), ratios.end());
  // Resamples allowed beyond a bound. The small term keeps 100,000 * 0.0125 at 1,250 whichever way it rounds.
  const auto tail = static_cast<size_t>(std::floor(static_cast<double>(options.resamples) * options.alpha + 1e-6));
  result.lower = ratios[tail];
  result.upper = ratios[ratios.size() - 1 - tail];
  return result;
}

LeaveOneOut leave_one_out(std::span<const PairedLoss> documents) {
  check_documents(documents);
  Sums all;
  for (const PairedLoss& document : documents) all.add(document);
  LeaveOneOut found{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 0, 0.0};
  double farthest = -1.0;
  for (size_t out = 0; out < documents.size(); ++out) {
    Sums others;  // summed anew: a difference of sums would lose digits where one document is most of the sum
    for (size_t i = 0; i < documents.size(); ++i) {
      if (i != out) others.add(documents[i]);
    }
    const double ratio = others.ratio_minus_1();
    found.lowest = std::min(found.lowest, ratio);
    found.highest = std::max(found.highest, ratio);
    const double moved = std::abs(ratio - all.ratio_minus_1());
    if (moved <= farthest) continue;
    farthest = moved;
    found.most_moving = static_cast<int64_t>(out);
    found.without_it = ratio;
  }
  return found;
}

}  // namespace asymkv::stats
