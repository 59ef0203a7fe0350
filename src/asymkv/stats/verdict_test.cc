#include "asymkv/stats/verdict.h"

#include <gtest/gtest.h>

#include <limits>

#include "asymkv/base/error.h"

namespace asymkv::stats {
namespace {

TEST(Verdict, PreservationOfTheReferencePanel) {
  const GrossLossVerdict pass = preservation_verdict({1319, 6, 3}, 0.05 / 24);
  EXPECT_EQ(pass.verdict, Verdict::kPass);
  EXPECT_EQ(pass.limit, 0.02);
  EXPECT_EQ(pass.upper, clopper_pearson_upper(6, 1319, 0.05 / 24));
  EXPECT_EQ(pass.lower, clopper_pearson_lower(6, 1319, 0.05 / 24));
  EXPECT_EQ(preservation_verdict({1319, 14, 22}, 0.05 / 24).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(preservation_verdict({1319, 1200, 0}, 0.05 / 24).verdict, Verdict::kDegraded);
}

// Neither objective is always the stricter one.
TEST(Verdict, ObjectivesDisagreeBothWays) {
  EXPECT_EQ(preservation_verdict({1319, 6, 3}, 0.05 / 24).verdict, Verdict::kPass);
  EXPECT_EQ(aggregate_verdict({1319, 6, 3}, 0.05 / 24).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(preservation_verdict({1319, 14, 22}, 0.05 / 24).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(aggregate_verdict({1319, 14, 22}, 0.05 / 24).verdict, Verdict::kPass);
}

TEST(Verdict, AggregateDegradedWhenTheUpperEndIsBelowTheMargin) {
  const NetChangeVerdict got = aggregate_verdict({1319, 1200, 0}, 0.05 / 24);
  EXPECT_EQ(got.verdict, Verdict::kDegraded);
  EXPECT_LT(got.upper, got.margin);
  EXPECT_EQ(aggregate_verdict({100, 0, 0}, 0.05).verdict, Verdict::kNotEstablished);
}

TEST(Verdict, RetrievalUsesItsOwnLimit) {
  EXPECT_EQ(retrieval_verdict({200, 0, 0}, 0.05 / 24).verdict, Verdict::kPass);
  EXPECT_EQ(preservation_verdict({200, 0, 0}, 0.05 / 24).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(retrieval_verdict({20, 0, 0}, 0.05).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(retrieval_verdict({200, 180, 0}, 0.05).verdict, Verdict::kDegraded);
}

TEST(Verdict, LossAgainstItsLimit) {
  const auto ratio = [](double lower, double upper) { return LossRatio{(lower + upper) / 2, lower, upper, 0, 8, {}}; };
  EXPECT_EQ(loss_verdict(ratio(-0.001, 0.01)).verdict, Verdict::kPass);
  EXPECT_EQ(loss_verdict(ratio(0.009, 0.011)).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(loss_verdict(ratio(0.01, 0.02)).verdict, Verdict::kNotEstablished);
  EXPECT_EQ(loss_verdict(ratio(0.011, 0.02)).verdict, Verdict::kDegraded);
  EXPECT_THROW(loss_verdict(ratio(0.0, 0.0), -0.1), Error);
  EXPECT_THROW(loss_verdict(ratio(0.0, std::numeric_limits<double>::quiet_NaN())), Error);
}

TEST(Verdict, NamesRoundTrip) {
  for (const Verdict v : {Verdict::kPass, Verdict::kUninformative, Verdict::kNotEstablished, Verdict::kDegraded}) {
    EXPECT_EQ(parse_verdict(verdict_name(v)), v);
  }
  EXPECT_EQ(verdict_name(Verdict::kNotEstablished), "not_established");
  EXPECT_EQ(verdict_words(Verdict::kNotEstablished), "not established");
  EXPECT_THROW(parse_verdict("worse"), Error);
}

TEST(Verdict, OddInputs) {
  EXPECT_THROW(preservation_verdict({0, 0, 0}, 0.05), Error);
  EXPECT_THROW(preservation_verdict({10, 11, 0}, 0.05), Error);
  EXPECT_THROW(preservation_verdict({10, 6, 5}, 0.05), Error);
  EXPECT_THROW(preservation_verdict({10, 1, 1}, 0.05, 1.0), Error);
  EXPECT_THROW(preservation_verdict({10, 1, 1}, 0.5), Error);
  EXPECT_THROW(aggregate_verdict({10, 1, 1}, 0.05, 0.0), Error);
  EXPECT_THROW(aggregate_verdict({10, 1, 1}, 0.05, 0.01), Error);
  EXPECT_THROW(aggregate_verdict({10, 1, 1}, std::numeric_limits<double>::quiet_NaN()), Error);
}

}  // namespace
}  // namespace asymkv::stats
