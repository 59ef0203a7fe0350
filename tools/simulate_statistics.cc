// Measures how often the gate's bounds and verdicts are wrong, and prints the tables of docs/statistics.md. What can be
// counted is exact; the rest is simulated, seeded, with the number of repeats given (default 4000: minutes).
//
//     simulate_statistics [REPEATS]

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/number.h"
#include "asymkv/stats/simulation.h"
#include "asymkv/stats/verdict.h"

namespace asymkv::stats {
namespace {

constexpr double kAlphas[] = {0.05, 0.05 / 24};

double percent(double share) {
  return 100.0 * share;
}

void print_binomial() {
  fmt::print("\nClopper-Pearson, exact: how often the bound misses, in %\n\n");
  fmt::print("| n | true rate, % | upper, alpha 5 | lower, alpha 5 | upper, alpha 0.208 | lower, alpha 0.208 |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const int64_t n : {20, 200, 1319}) {
    for (const double rate : {0.0005, 0.005, 0.02, 0.05, 0.5}) {
      const Misses one = clopper_pearson_misses(n, rate, kAlphas[0]),
                   many = clopper_pearson_misses(n, rate, kAlphas[1]);
      fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.3f} | {:.3f} |\n", n, percent(rate), percent(one.upper),
                 percent(one.lower), percent(many.upper), percent(many.lower));
    }
  }
}

void print_tango() {
  fmt::print("\nTango, exact: how often the bound misses, in %\n\n");
  fmt::print(
      "| n | lost, % | gained, % | lower, alpha 5 | upper, alpha 5 | lower, alpha 0.208 | upper, alpha 0.208 |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  const PairedRates rates[] = {{0.001, 0.001}, {0.01, 0.0}, {0.015, 0.005}, {0.02, 0.01}, {0.06, 0.05}, {0.3, 0.05}};
  for (const int64_t n : {20, 200, 1319}) {
    for (const PairedRates& rate : rates) {
      const Misses one = tango_misses(n, rate, kAlphas[0]), many = tango_misses(n, rate, kAlphas[1]);
      fmt::print("| {} | {} | {} | {:.2f} | {:.2f} | {:.3f} | {:.3f} |\n", n, percent(rate.lost), percent(rate.gained),
                 percent(one.lower), percent(one.upper), percent(many.lower), percent(many.upper));
    }
  }
}

void print_bootstrap(const Repeats& repeats) {
  fmt::print("\nPaired bootstrap of the loss ratio: how often the bound misses, in % of {} repeats\n\n", repeats.count);
  fmt::print("| documents | noise | upper, alpha 5 | lower, alpha 5 | upper, alpha 0.208 | lower, alpha 0.208 |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const LossNoise noise : {LossNoise::kNormal, LossNoise::kSkewed}) {
    for (const int64_t documents : {8, 16, 32, 128}) {
      const LossModel model = {.documents = documents, .noise = noise};
      const Misses one = bootstrap_misses(model, kAlphas[0], repeats);
      const Misses many = bootstrap_misses(model, kAlphas[1], repeats);
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.2f} |\n", documents,
                 noise == LossNoise::kNormal ? "normal" : "skewed", percent(one.upper), percent(one.lower),
                 percent(many.upper), percent(many.lower));
    }
  }
}

struct Scenario {
  const char* name;
  double math_loss;
  double retrieval_loss;
  double loss_ratio;
};

void print_admission(const Repeats& repeats) {
  fmt::print("\nWhole admission: six arms, four bounds each, alpha 5 % / 24, in % of {} repeats\n\n", repeats.count);
  fmt::print("| truth of every arm | some bound passes | some arm passes | all arms pass | some arm degraded |\n");
  fmt::print("|---|---|---|---|---|\n");
  const Scenario scenarios[] = {{"no effect", 0.0, 0.0, 0.0},
                                {"small effect: 0.3 % lost, loss +0.3 %", 0.003, 0.003, 0.003},
                                {"every bound at its limit", kPreservationLimit, kRetrievalLimit, kLossLimit},
                                {"math at its limit, the rest perfect", kPreservationLimit, 0.0, 0.0},
                                {"loss at its limit, the rest perfect", 0.0, 0.0, kLossLimit},
                                {"strong effect: 30 % lost, loss +10 %", 0.3, 0.3, 0.1}};
  for (const Scenario& scenario : scenarios) {
    Admission admission;
    admission.loss = {.documents = 32, .ratio_minus_1 = scenario.loss_ratio, .spread = 0.01};
    admission.math_loss = scenario.math_loss;
    admission.retrieval_loss = scenario.retrieval_loss;
    const AdmissionRates rates = admission_rates(admission, repeats);
    fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", scenario.name, percent(rates.any_bound_passes),
               percent(rates.any_arm_passes), percent(rates.all_arms_pass), percent(rates.any_arm_degraded));
  }
}

std::vector<Look> four_looks(int64_t n, double alpha, Spending spending) {
  return make_looks(n, alpha, std::vector<double>{0.25, 0.5, 0.75, 1.0}, spending);
}

void print_look_errors(const Repeats& repeats) {
  fmt::print("\nFour looks at 1,319 cases, truth at the limit: how often a look is wrong, in %\n\n");
  fmt::print("| spending | alpha, % | passes, exact | degraded, exact | passes of {} | net change passes of {} |\n",
             repeats.count, repeats.count);
  fmt::print("|---|---|---|---|---|---|\n");
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    for (const double alpha : kAlphas) {
      const std::vector<Look> looks = four_looks(1319, alpha, spending);
      const LookShares exact = expect_looks(looks, kPreservationLimit, kPreservationLimit).total;
      fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} |\n", spending_name(spending), percent(alpha),
                 percent(exact.pass), percent(exact.degraded),
                 percent(simulate_looks(looks, kPreservationLimit, kPreservationLimit, repeats).pass),
                 percent(tango_pass_share(looks, kAggregateMargin, {0.02, 0.01}, repeats)));
    }
  }
}

void print_look_savings() {
  fmt::print("\nFour looks at 1,319 cases, limit 2 %: what to expect, exact\n\n");
  fmt::print(
      "| alpha, % | spending | true loss, % | pass, % | degraded, % | hopeless, % | cases used, % | pass with one "
      "look, % |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (const double alpha : kAlphas) {
    for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
      for (const double rate : {0.0, 0.005, 0.01, 0.02, 0.05, 0.5}) {
        const LookExpectation expected = expect_looks(four_looks(1319, alpha, spending), kPreservationLimit, rate);
        const std::vector<Look> one_look = {{1319, alpha}};
        const double fixed = expect_looks(one_look, kPreservationLimit, rate).total.pass;
        fmt::print("| {:.3g} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", percent(alpha),
                   spending_name(spending), percent(rate), percent(expected.total.pass),
                   percent(expected.total.degraded), percent(expected.total.hopeless), percent(expected.cases_share),
                   percent(fixed));
      }
    }
  }
}

int run(std::span<char*> arguments) {
  Repeats repeats = {.count = 4000};
  if (arguments.size() > 1) {
    const auto count = parse_number<int64_t>(arguments[1]);
    if (!count || *count < 1) throw_usage("REPEATS must be a number from 1 up, but it is '{}'", arguments[1]);
    repeats.count = *count;
  }
  print_binomial();
  print_tango();
  print_look_savings();
  print_bootstrap(repeats);
  print_look_errors({.count = 25 * repeats.count, .seed = repeats.seed});
  print_admission(repeats);
  return 0;
}

}  // namespace
}  // namespace asymkv::stats

int main(int argc, char** argv) {
  try {
    return asymkv::stats::run({argv, static_cast<size_t>(argc)});
  } catch (const asymkv::Error& e) {
    fmt::print(stderr, "simulate_statistics: {}\n", e.what());
    return asymkv::exit_code(e.code());
  }
}
