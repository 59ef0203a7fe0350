// asymkv stats cases: how many cases an arm of a known quality needs to pass.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/stats/required_cases.h"
#include "asymkv/stats/verdict.h"
#include "command.h"
#include "option_values.h"
#include "stats_input.h"

namespace asymkv::app {
namespace {

struct CasesOptions {
  AlphaOptions alpha;
  double limit_pct = 100.0 * stats::kPreservationLimit;
  std::vector<double> loss_pct = {0.0, 0.1, 0.25, 0.5, 1.0, 1.5};
  double power_pct = 80.0;
  bool json = false;
};

struct Row {
  double loss_pct;
  std::optional<stats::PowerPlan> plan;
};

Json cases_json(const CasesOptions& options, const std::vector<Row>& rows) {
  Json plans = Json::array();
  for (const Row& row : rows) {
    Json plan = {{"loss_pct", row.loss_pct}, {"cases", nullptr}, {"most_losses", nullptr}, {"power", nullptr}};
    if (row.plan) {
      plan["cases"] = row.plan->cases;
      plan["most_losses"] = row.plan->most_losses;
      plan["power"] = row.plan->power;
    }
    plans.push_back(std::move(plan));
  }
  return {{"alpha", options.alpha.value()},
          {"limit_pct", options.limit_pct},
          {"power_pct", options.power_pct},
          {"plans", std::move(plans)}};
}

void print_cases(const CasesOptions& options, const std::vector<Row>& rows) {
  print_note("limit {:.4g} %, alpha {:.6g} a bound, a chance of {:.4g} % to pass\n\n", options.limit_pct,
             options.alpha.value(), options.power_pct);
  print_note("true loss, %       cases   may lose   chance, %\n");
  for (const Row& row : rows) {
    if (row.plan) {
      print_note("{:>12.4g}  {:>10}  {:>9}  {:>10.2f}\n", row.loss_pct, row.plan->cases, row.plan->most_losses,
                 100.0 * row.plan->power);
    } else {
      print_note("{:>12.4g}  {:>10}\n", row.loss_pct, "none do");
    }
  }
  print_note(
      "\nExact, for one bound: a pass needs all of them. Between two rows of allowed losses the chance falls with each "
      "case.\n");
}

int run_cases(const CasesOptions& options) {
  check_open_percent("--limit-pct", options.limit_pct);
  check_open_percent("--power-pct", options.power_pct);
  std::vector<Row> rows;
  for (const double loss_pct : options.loss_pct) {
    if (!(loss_pct >= 0.0 && loss_pct < 100.0)) {
      throw_usage("--loss-pct must lie between 0 and 100 (100 excluded), but it is {}", loss_pct);
    }
    rows.push_back({loss_pct, stats::cases_for_power(loss_pct / 100.0, options.limit_pct / 100.0, options.alpha.value(),
                                                     options.power_pct / 100.0)});
  }
  options.json ? print_json(cases_json(options, rows)) : print_cases(options, rows);
  return 0;
}

}  // namespace

void add_stats_cases_command(CLI::App& stats, Action& action) {
  auto options = std::make_shared<CasesOptions>();
  CLI::App* leaf = stats.add_subcommand("cases", "how many cases an arm of a known true loss needs to pass a limit");
  leaf->footer(
      "Examples:\n"
      "  asymkv stats cases --limit-pct 2 --divisor 40 --loss-pct 0.5,1\n"
      "  asymkv stats cases --limit-pct 5 --power-pct 90");
  options->alpha.add_to(*leaf);
  leaf->add_option("--limit-pct", options->limit_pct, "largest gross loss in %")->capture_default_str();
  add_list_option(*leaf, "--loss-pct", options->loss_pct, "true loss rates to look at, in %");
  leaf->add_option("--power-pct", options->power_pct, "chance to pass, in %")->capture_default_str();
  run_with(leaf, action, options, run_cases);
}

}  // namespace asymkv::app
