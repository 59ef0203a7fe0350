#include "asymkv/stats/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Losses around 3 nats; candidate about `shift` higher with document noise `spread`, both relative.
std::vector<PairedLoss> random_documents(size_t count, double shift, double spread, uint32_t seed = 7) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> native(2.0, 4.0);
  std::normal_distribution<double> noise(shift, spread);
  std::vector<PairedLoss> documents(count);
  for (PairedLoss& document : documents) {
    document.native = native(random);
    document.candidate = document.native * (1.0 + noise(random));
  }
  return documents;
}

TEST(Bootstrap, EqualArmsGiveExactlyZero) {
  auto documents = random_documents(33, 0.0, 0.0);
  for (PairedLoss& document : documents) document.candidate = document.native;
  const LossRatio got = bootstrap_loss_ratio(documents, {});
  EXPECT_EQ(got.ratio_minus_1, 0.0);
  EXPECT_EQ(got.lower, 0.0);
  EXPECT_EQ(got.upper, 0.0);
  EXPECT_EQ(got.largest_delta_share, 0.0);
}

TEST(Bootstrap, ConstantRatioGivesExactlyRMinusOne) {
  for (const double r : {1.01, 0.99, 1.05, 2.0, 1.0001, 0.5, 1.3, 1.0125}) {
    auto documents = random_documents(64, 0.0, 0.0, static_cast<uint32_t>(r * 1000));
    for (PairedLoss& document : documents) document.candidate = r * document.native;
    const LossRatio got = bootstrap_loss_ratio(documents, {.resamples = 1000});
    EXPECT_EQ(got.ratio_minus_1, r - 1.0) << r;
    EXPECT_EQ(got.lower, r - 1.0) << r;
    EXPECT_EQ(got.upper, r - 1.0) << r;
  }
}

// The shortcut for a constant ratio must not swallow a real spread, however small.
TEST(Bootstrap, TinySpreadIsNotConstant) {
  auto documents = random_documents(20, 0.0, 0.0);
  for (size_t i = 0; i < documents.size(); ++i) {
    documents[i].candidate = documents[i].native * (1.01 + (i % 2 == 0 ? 1e-13 : 0.0));
  }
  const LossRatio got = bootstrap_loss_ratio(documents, {.resamples = 1000});
  EXPECT_LT(got.lower, got.upper);
  EXPECT_NEAR(got.ratio_minus_1, 0.01, 2e-13);
}

void expect_same(const LossRatio& a, const LossRatio& b) {
  EXPECT_EQ(a.ratio_minus_1, b.ratio_minus_1);
  EXPECT_EQ(a.lower, b.lower);
  EXPECT_EQ(a.upper, b.upper);
  EXPECT_EQ(a.largest_delta_share, b.largest_delta_share);
}

TEST(Bootstrap, ShuffledDocumentsChangeNothing) {
  auto documents = random_documents(41, 0.002, 0.02);
  documents.push_back(documents.front());  // a duplicate, and a tie in native only
  documents.push_back({documents[1].native, documents[1].candidate * 1.01});
  const LossRatio want = bootstrap_loss_ratio(documents, {.resamples = 5000});
  std::mt19937 random(3);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(documents.begin(), documents.end(), random);
    expect_same(bootstrap_loss_ratio(documents, {.resamples = 5000}), want);
  }
}

TEST(Bootstrap, SameSeedRepeatsAcrossThreadCounts) {
  const auto documents = random_documents(50, 0.003, 0.02);
  const BootstrapOptions options{.resamples = 20'000, .seed = 42, .alpha = 0.0125};
  ASSERT_EQ(::setenv("ASYMKV_NUM_THREADS", "1", 1), 0);
  const LossRatio one = bootstrap_loss_ratio(documents, options);
  ASSERT_EQ(::setenv("ASYMKV_NUM_THREADS", "5", 1), 0);
  const LossRatio five = bootstrap_loss_ratio(documents, options);
  ASSERT_EQ(::unsetenv("ASYMKV_NUM_THREADS"), 0);
  expect_same(one, five);
}

TEST(Bootstrap, TwoSeedsDifferButAgree) {
  const auto documents = random_documents(128, 0.003, 0.02);
  const LossRatio first = bootstrap_loss_ratio(documents, {.seed = 1});
  const LossRatio second = bootstrap_loss_ratio(documents, {.seed = 2});
  EXPECT_EQ(first.ratio_minus_1, second.ratio_minus_1);
  EXPECT_NE(first.upper, second.upper);
  EXPECT_NEAR(first.upper, second.upper, 0.03 * (first.upper - first.ratio_minus_1));
}

// Large samples: the percentile bound is near the delta method's normal bound.
TEST(Bootstrap, BoundsMatchTheNormalLimit) {
  const auto documents = random_documents(400, 0.004, 0.02);
  const LossRatio got = bootstrap_loss_ratio(documents, {.alpha = 0.05});
  double native = 0.0, squares = 0.0;
  for (const auto& d : documents) native += d.native;
  for (const auto& d : documents) {
    const double residual = d.candidate - (1.0 + got.ratio_minus_1) * d.native;
    squares += residual * residual;
  }
  const double error = std::sqrt(squares) / native;
  EXPECT_NEAR(got.upper - got.ratio_minus_1, 1.6449 * error, 0.05 * error);
  EXPECT_NEAR(got.ratio_minus_1 - got.lower, 1.6449 * error, 0.05 * error);
}

// Two documents: the resampled ratio takes three values with probabilities 1/4, 1/2, 1/4, so the bounds are known.
TEST(Bootstrap, TwoDocumentsByHand) {
  const std::vector<PairedLoss> documents = {{1.0, 1.0}, {3.0, 3.3}};
  const LossRatio quarter = bootstrap_loss_ratio(documents, {.alpha = 0.2});
  EXPECT_DOUBLE_EQ(quarter.ratio_minus_1, 0.3 / 4.0);
  EXPECT_EQ(quarter.lower, 0.0);
  EXPECT_NEAR(quarter.upper, 0.1, 1e-15);
  EXPECT_EQ(quarter.largest_delta_share, 1.0);
  const LossRatio third = bootstrap_loss_ratio(documents, {.alpha = 0.3});
  EXPECT_NEAR(third.lower, 0.075, 1e-15);
  EXPECT_NEAR(third.upper, 0.075, 1e-15);
}

TEST(Bootstrap, BoundsAreExtremeOrderStatistics) {
  const auto documents = random_documents(30, 0.0, 0.05);
  // 100 resamples at alpha 0.01: one resample lies beyond each bound, so a larger alpha moves both inwards.
  const LossRatio wide = bootstrap_loss_ratio(documents, {.resamples = 100, .alpha = 0.01});
  const LossRatio narrow = bootstrap_loss_ratio(documents, {.resamples = 100, .alpha = 0.25});
  EXPECT_LT(wide.lower, narrow.lower);
  EXPECT_GT(wide.upper, narrow.upper);
}

TEST(LeaveOneOut, FindsThePlantedDocument) {
  // Nine documents of 2 nats that lose 0.01 each and one that loses 1: by hand, 1.09 / 20, 0.09 / 18 and 1.08 / 18.
  std::vector<PairedLoss> documents(10, {2.0, 2.01});
  documents[6].candidate = 3.0;
  const LeaveOneOut got = leave_one_out(documents);
  EXPECT_EQ(got.most_moving, 6);
  EXPECT_NEAR(got.without_it, 0.005, 1e-15);
  EXPECT_NEAR(got.lowest, 0.005, 1e-15);
  EXPECT_NEAR(got.highest, 0.06, 1e-15);
}

TEST(LeaveOneOut, EqualArmsStayAtZeroAndTwoDocumentsAreEnough) {
  const std::vector<PairedLoss> equal = {{1.0, 1.0}, {2.0, 2.0}, {3.0, 3.0}};
  const LeaveOneOut none = leave_one_out(equal);
  EXPECT_EQ(none.lowest, 0.0);
  EXPECT_EQ(none.highest, 0.0);
  EXPECT_EQ(none.most_moving, 0);
  const std::vector<PairedLoss> two = {{1.0, 1.5}, {2.0, 2.0}};
  EXPECT_EQ(leave_one_out(two).lowest, 0.0);
  EXPECT_EQ(leave_one_out(two).highest, 0.5);
  expect_usage([&] { leave_one_out(std::span(two).first(1)); }, "needs at least 2");
}

TEST(Bootstrap, OddInputs) {
  const std::vector<PairedLoss> good = {{1.0, 1.0}, {2.0, 2.1}};
  expect_usage([] { bootstrap_loss_ratio({}, {}); }, "needs at least 2");
  expect_usage([&] { bootstrap_loss_ratio(std::span(good).first(1), {}); }, "there are 1");
  for (const double bad : {0.0, -1.0, kNan, kInfinity, 1e300, 1e-300}) {
    const std::vector<PairedLoss> documents = {{1.0, 1.0}, {bad, 2.0}};
    expect_usage([&] { bootstrap_loss_ratio(documents, {}); }, "document 2: the native loss");
  }
  for (const double bad : {-1.0, kNan, kInfinity, 1e300}) {
    const std::vector<PairedLoss> documents = {{1.0, bad}, {1.0, 2.0}};
    expect_usage([&] { bootstrap_loss_ratio(documents, {}); }, "document 1: the candidate loss");
  }
  for (const double bad : {0.0, 0.5, -1.0, kNan}) {
    expect_usage([&] { bootstrap_loss_ratio(good, {.alpha = bad}); }, "alpha must lie");
  }
  expect_usage([&] { bootstrap_loss_ratio(good, {.resamples = 0}); }, "resamples must be between 1");
  expect_usage([&] { bootstrap_loss_ratio(good, {.resamples = 1'000'000'000}); }, "resamples must be between 1");
  expect_usage([&] { bootstrap_loss_ratio(good, {.resamples = 10, .alpha = 0.01}); }, "take at least 100");
}

}  // namespace
}  // namespace asymkv::stats
