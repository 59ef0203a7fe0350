#include "asymkv/stats/sign_flip.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/stats/random.h"

namespace asymkv::stats {
namespace {

constexpr int64_t kMaxFlips = 100'000'000;
constexpr double kMaxDifference = 1e150;
constexpr int64_t kFlipsPerTask = 8192;
constexpr size_t kGroup = 8;  // differences whose signs are one byte

// Sums of the sizes of up to 8 differences under each of their sign patterns.
using GroupSums = std::array<double, size_t{1} << kGroup>;

std::vector<GroupSums> group_sums(std::span<const double> sizes) {
  std::vector<GroupSums> groups((sizes.size() + kGroup - 1) / kGroup);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t pattern = 0; pattern < groups[group].size(); ++pattern) {
      double sum = 0.0;
      for (size_t bit = 0; bit < kGroup && group * kGroup + bit < sizes.size(); ++bit) {
        const double size = sizes[group * kGroup + bit];
        sum += (pattern >> bit & 1) != 0 ? size : -size;
      }
      groups[group][pattern] = sum;
    }
  }
  return groups;
}

// The observed |sum| less what rounding may have added, so that equal sums count as reached.
struct Observed {
  double mean;
  double reach;
};

Observed observe(std::span<const double> differences, std::span<const double> sizes) {
  double sum = 0.0, total = 0.0;
  for (const double difference : differences) sum += difference;
  for (const double size : sizes) total += size;
  return {sum / static_cast<double>(differences.size()), std::abs(sum) - 1e-13 * total};
}

// Share of the 2^n patterns that reach it; n <= kMaxExactFlips.
double exact_share(const std::vector<GroupSums>& groups, int64_t n, double reach) {
  int64_t hits = 0;
  const uint64_t patterns = uint64_t{1} << n;
  for (uint64_t pattern = 0; pattern < patterns; ++pattern) {
    double sum = 0.0;
    for (size_t group = 0; group < groups.size(); ++group) sum += groups[group][pattern >> (kGroup * group) & 0xff];
    hits += std::abs(sum) >= reach ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(patterns);
}

bool drawn_reaches(const std::vector<GroupSums>& groups, double reach, SplitMix64 random) {
  double sum = 0.0;
  uint64_t signs = 0;
  for (size_t group = 0; group < groups.size(); ++group) {
    signs = group % kGroup == 0 ? random.next() : signs >> kGroup;
    sum += groups[group][signs & 0xff];
  }
  return std::abs(sum) >= reach;
}

double drawn_share(const std::vector<GroupSums>& groups, double reach, const SignFlipOptions& options) {
  std::atomic<int64_t> hits = 0;
  parallel_for((options.flips + kFlipsPerTask - 1) / kFlipsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(options.flips, (task + 1) * kFlipsPerTask);
    int64_t here = 0;
    for (int64_t flip = task * kFlipsPerTask; flip < end; ++flip) {
      here += drawn_reaches(groups, reach, SplitMix64(options.seed, static_cast<uint64_t>(flip))) ? 1 : 0;
    }
    hits += here;
  });
  return static_cast<double>(hits + 1) / static_cast<double>(options.flips + 1);
}

void check_input(std::span<const double> differences, const SignFlipOptions& options) {
  if (differences.empty()) throw_usage("the list of differences is empty: give at least one");
  for (const double difference : differences) {
    if (!(std::abs(difference) <= kMaxDifference)) {
      throw_usage("every difference must be finite and at most {} in size, but one is {}", kMaxDifference, difference);
    }
  }
  if (options.flips < 1 || options.flips > kMaxFlips) {
    throw_usage("flips must be between 1 and {}, but it is {}", kMaxFlips, options.flips);
  }
}

}  // namespace

SignFlip sign_flip_test(std::span<const double> differences, const SignFlipOptions& options) {
  check_input(differences, options);
  // By size, so that the order of the input can change neither the draws nor the rounding of a sum.
  std::vector<double> sorted(differences.begin(), differences.end());
  std::sort(sorted.begin(), sorted.end(),
            [](double a, double b) { return std::abs(a) != std::abs(b) ? std::abs(a) < std::abs(b) : a < b; });
  std::vector<double> sizes;
  for (const double difference : sorted) {
    if (difference != 0.0) sizes.push_back(std::abs(difference));
  }
  const Observed observed = observe(sorted, sizes);
  const auto n = static_cast<int64_t>(sizes.size());
  const std::vector<GroupSums> groups = group_sums(sizes);
  const bool exact = n <= kMaxExactFlips;
  const double p = exact ? exact_share(groups, n, observed.reach) : drawn_share(groups, observed.reach, options);
  return {{p, std::log10(p)}, static_cast<int64_t>(differences.size()), observed.mean, exact};
}

}  // namespace asymkv::stats
