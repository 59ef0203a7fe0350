// asymkv stats looks: what looks before the last case decide, and what they save.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/stats/sequential.h"
#include "asymkv/stats/verdict.h"
#include "command.h"
#include "option_values.h"
#include "stats_input.h"

namespace asymkv::app {
namespace {

struct LooksOptions {
  int64_t n = 0;
  std::vector<double> fractions = {0.25, 0.5, 0.75, 1.0};
  std::string spending = std::string(stats::spending_name(stats::Spending::kObrienFleming));
  AlphaOptions alpha;
  double limit_pct = 100.0 * stats::kPreservationLimit;
  std::vector<double> loss_pct = {0.0, 1.0, 2.0, 5.0, 50.0};
  bool json = false;
};

struct Expected {
  double loss_pct;
  stats::LookExpectation what;
};

std::vector<stats::Look> make_looks(const LooksOptions& options) {
  if (options.n < 1 || options.n > stats::kMaxLookCases) {
    throw_usage("--n must be between 1 and {}, but it is {}", stats::kMaxLookCases, options.n);
  }
  return stats::make_looks(options.n, options.alpha.value(), options.fractions,
                           stats::parse_spending(options.spending));
}

Json looks_json(const std::vector<stats::LookRule>& rules, const std::vector<Expected>& expected, double alpha) {
  Json looks = Json::array(), expectations = Json::array();
  for (const stats::LookRule& rule : rules) {
    looks.push_back({{"cases", rule.look.cases},
                     {"level", rule.look.level},
                     {"pass_most", rule.pass_most},
                     {"degraded_from", rule.degraded_from},
                     {"hopeless_from", rule.hopeless_from}});
  }
  for (const Expected& row : expected) {
    const stats::LookShares& total = row.what.total;
    expectations.push_back({{"loss_pct", row.loss_pct},
                            {"pass", total.pass},
                            {"degraded", total.degraded},
                            {"hopeless", total.hopeless},
                            {"not_established", total.not_established},
                            {"cases_share", row.what.cases_share}});
  }
  return {{"alpha", alpha}, {"looks", std::move(looks)}, {"expectations", std::move(expectations)}};
}

// A count of losses, or "-" where none decides.
std::string losses(int64_t count, int64_t cases) {
  return count < 0 || count > cases ? "-" : fmt::format("{}", count);
}

void print_looks(const LooksOptions& options, const std::vector<stats::LookRule>& rules,
                 const std::vector<Expected>& expected) {
  print_note("{} spending of alpha {:.6g} over {} looks; limit {:.4g} %\n\n", options.spending, options.alpha.value(),
             rules.size(), options.limit_pct);
  print_note("   cases        level   passes up to   hopeless from   degraded from lost\n");
  for (const stats::LookRule& rule : rules) {
    const int64_t cases = rule.look.cases;
    print_note("{:>8}  {:>11.3e}  {:>13}  {:>14}  {:>19}\n", cases, rule.look.level, losses(rule.pass_most, cases),
               losses(rule.hopeless_from, cases), losses(rule.degraded_from, cases));
  }
  print_note("\ntrue loss, %     pass %   degraded %   hopeless %   not established %   cases used %\n");
  for (const Expected& row : expected) {
    const stats::LookShares& total = row.what.total;
    print_note("{:>12.4g}  {:>9.2f}  {:>11.2f}  {:>11.2f}  {:>18.2f}  {:>13.1f}\n", row.loss_pct, 100.0 * total.pass,
               100.0 * total.degraded, 100.0 * total.hopeless, 100.0 * total.not_established,
               100.0 * row.what.cases_share);
  }
  print_note(
      "\nExact. Over all looks a wrong pass, and a wrong degradation, has probability alpha at most; a hopeless arm "
      "ends as not established.\n");
}

int run_looks(const LooksOptions& options) {
  check_open_percent("--limit-pct", options.limit_pct);
  const std::vector<stats::Look> looks = make_looks(options);
  const double limit = options.limit_pct / 100.0;
  const std::vector<stats::LookRule> rules = stats::look_rules(looks, limit);
  std::vector<Expected> expected;
  for (const double loss_pct : options.loss_pct) {
    expected.push_back({loss_pct, stats::expect_looks(looks, limit, loss_pct / 100.0)});
  }
  if (options.json) {
    print_json(looks_json(rules, expected, options.alpha.value()));
  } else {
    print_looks(options, rules, expected);
  }
  return 0;
}

}  // namespace

void add_stats_looks_command(CLI::App& stats, Action& action) {
  auto options = std::make_shared<LooksOptions>();
  CLI::App* leaf = stats.add_subcommand("looks", "looks before the last case: what each decides, and what they save");
  leaf->footer("Example:\n  asymkv stats looks --n 1319 --looks 0.25,0.5,0.75,1 --spending obrien-fleming --divisor 8");
  leaf->add_option("--n", options->n, "cases at the last look")->required();
  add_list_option(*leaf, "--looks", options->fractions, "fractions of the cases, rising to 1");
  leaf->add_option("--spending", options->spending, "obrien-fleming or pocock")->capture_default_str();
  options->alpha.add_to(*leaf);
  leaf->add_option("--limit-pct", options->limit_pct, "largest gross loss in %")->capture_default_str();
  add_list_option(*leaf, "--loss-pct", options->loss_pct, "true loss rates to look at, in %");
  run_with(leaf, action, options, run_looks);
}

}  // namespace asymkv::app
