#pragma once

#include <cstdint>
#include <span>

namespace asymkv::stats {

// Mean losses outside [kMinNativeLoss, kMaxLoss] nats (candidate: [0, kMaxLoss]) are refused: no model has them, and
// their ratios could overflow.
inline constexpr double kMinNativeLoss = 1e-9;
inline constexpr double kMaxLoss = 1e9;

// Mean negative log-likelihood per scored token of one document, in nats, under both arms.
struct PairedLoss {
  double native;
  double candidate;
};

struct BootstrapOptions {
  int64_t resamples = 100'000;
  uint64_t seed = 1;
  double alpha = 0.05;  // error probability of each one-sided bound
};

// Everything is a fraction: 0.01 means that the candidate's mean loss is 1 % higher.
struct LossRatio {
  double ratio_minus_1;  // mean candidate loss / mean native loss - 1; every document weighs the same
  double lower;          // one-sided percentile bounds at alpha each
  double upper;
  double largest_delta_share;  // largest |candidate - native| of one document / sum of them; 0 if all are 0
  int64_t documents;
  BootstrapOptions options;
};

// Paired percentile bootstrap over documents (Efron and Tibshirani 1993, chapter 13): each resample draws as many
// documents as there are, with replacement, both arms together. A bound has at most a share alpha of the resamples
// beyond it. Reproducible: the result depends on the set of pairs, resamples, seed and alpha alone, not on the order of
// the documents or on the number of threads (pairs are sorted, each resample has its own generator).
// Where all ratios candidate / native agree up to rounding (4 units in the last place) the ratio is a constant r and
// estimate and bounds are exactly r - 1; equal arms give exactly 0.
// Throws Error{kUsage}, naming the document, unless there are >= 2 documents, their losses are in range,
// 0 < alpha < 0.5, resamples <= 10,000,000 and resamples * alpha >= 1.
LossRatio bootstrap_loss_ratio(std::span<const PairedLoss> documents, const BootstrapOptions& options);

// What single documents do to the estimate: ratio_minus_1 over all documents but one, for each of them in turn. A
// diagnostic: no verdict depends on it.
struct LeaveOneOut {
  double lowest;
  double highest;
  int64_t most_moving;  // index of the document whose absence changes ratio_minus_1 most; the first of equals
  double without_it;    // ratio_minus_1 over the others
};
// Throws Error{kUsage}, naming the document, unless there are >= 2 documents with losses in range.
LeaveOneOut leave_one_out(std::span<const PairedLoss> documents);

}  // namespace asymkv::stats
