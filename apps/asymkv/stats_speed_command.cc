// asymkv stats speed: whether blocks of two arms show that one is faster.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/stats/speed.h"
#include "command.h"
#include "option_values.h"
#include "stats_input.h"

namespace asymkv::app {
namespace {

struct SpeedOptions {
  std::vector<std::string> blocks;
  std::vector<int64_t> failed_requests;
  double min_effect_pct = 1.0;
  bool json = false;
};

std::vector<stats::SpeedHypothesis> read_hypotheses(const SpeedOptions& options) {
  if (!options.failed_requests.empty() && options.failed_requests.size() != options.blocks.size()) {
    throw_usage("--failed-requests has {} counts, but --pairs {} files", options.failed_requests.size(),
                options.blocks.size());
  }
  std::vector<stats::SpeedHypothesis> hypotheses;
  for (size_t i = 0; i < options.blocks.size(); ++i) {
    const int64_t failed = options.failed_requests.empty() ? 0 : options.failed_requests[i];
    hypotheses.push_back({read_speed_blocks(options.blocks[i]), failed});
  }
  return hypotheses;
}

Json decision_json(const std::string& name, const stats::SpeedDecision& decision) {
  return {{"blocks", name},
          {"faster", decision.faster},
          {"slower", decision.slower},
          {"ties", decision.ties},
          {"median_ratio", decision.median_ratio},
          {"p", p_number(decision.sign)},
          {"log10_p", decision.sign.log10_p},
          {"p_holm", p_number(decision.sign_holm)},
          {"log10_p_holm", decision.sign_holm.log10_p},
          {"significant", decision.significant},
          {"large", decision.large},
          {"valid", decision.valid},
          {"verdict", stats::speed_verdict_name(decision.verdict)}};
}

void print_decisions(const SpeedOptions& options, const std::vector<stats::SpeedDecision>& decisions) {
  print_note("  faster  slower    ties  median ratio           p    p (Holm)  verdict\n");
  for (size_t i = 0; i < decisions.size(); ++i) {
    const stats::SpeedDecision& decision = decisions[i];
    print_note("{:>8}{:>8}{:>8}{:>14.4f}{:>12}{:>12}  {} ({})\n", decision.faster, decision.slower, decision.ties,
               decision.median_ratio, stats::p_words(decision.sign), stats::p_words(decision.sign_holm),
               stats::speed_verdict_words(decision.verdict), options.blocks[i]);
  }
  print_note(
      "\nA difference is shown by an exact sign test over blocks (ties dropped, Holm over these {} at 0.05), a "
      "median beyond {:.4g} %, and no failed request: all three.\n",
      decisions.size(), options.min_effect_pct);
}

int run_speed(const SpeedOptions& options) {
  if (!(options.min_effect_pct >= 0.0 && options.min_effect_pct <= 1000.0)) {
    throw_usage("--min-effect-pct must lie between 0 and 1000, but it is {}", options.min_effect_pct);
  }
  const std::vector<stats::SpeedDecision> decisions =
      stats::decide_speed(read_hypotheses(options), {.min_effect = options.min_effect_pct / 100.0});
  if (options.json) {
    Json list = Json::array();
    for (size_t i = 0; i < decisions.size(); ++i) list.push_back(decision_json(options.blocks[i], decisions[i]));
    print_json({{"decisions", std::move(list)}});
  } else {
    print_decisions(options, decisions);
  }
  return 0;
}

}  // namespace

void add_stats_speed_command(CLI::App& stats, Action& action) {
  auto options = std::make_shared<SpeedOptions>();
  CLI::App* leaf = stats.add_subcommand("speed", "whether counterbalanced blocks show that one arm is faster");
  leaf->footer("Example:\n  asymkv stats speed --pairs blocks.txt --failed-requests 0");
  leaf->add_option(
          "--pairs", options->blocks,
          "file: one 'candidate control' pair of rates a block and line; one file for each declared hypothesis")
      ->required()
      ->allow_extra_args(false);
  add_list_option(*leaf, "--failed-requests", options->failed_requests, "failed primary requests of each file");
  leaf->add_option("--min-effect-pct", options->min_effect_pct, "smallest median effect that counts, in %")
      ->capture_default_str();
  run_with(leaf, action, options, run_speed);
}

}  // namespace asymkv::app
