// asymkv stats ...: the gate's statistics by hand, for counts from anywhere (docs/statistics.md).

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/stats/bootstrap.h"
#include "asymkv/stats/intervals.h"
#include "asymkv/stats/required_cases.h"
#include "asymkv/stats/significance.h"
#include "asymkv/stats/verdict.h"
#include "command.h"
#include "stats_input.h"

namespace asymkv::app {
namespace {

using stats::Interval;
using stats::PairedCounts;
using stats::PValue;

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  print_note(format, std::forward<Args>(args)...);
}

// ---- stats paired

struct PairedOptions {
  PairedCounts counts;
  AlphaOptions alpha;
  double limit_pct = 100.0 * stats::kPreservationLimit;
  double margin_pp = 100.0 * stats::kAggregateMargin;
  bool json = false;
};

struct PairedAnswer {
  stats::GrossLossVerdict preservation;
  stats::NetChangeVerdict aggregate;
  PValue mcnemar;
};

Json paired_json(const PairedAnswer& answer, const PairedOptions& options) {
  const auto& [preservation, aggregate, mcnemar] = answer;
  return {{"gross_loss_pct", 100.0 * preservation.gross_loss},
          {"gross_upper_pct", 100.0 * preservation.upper},
          {"gross_lower_pct", 100.0 * preservation.lower},
          {"net_pp", 100.0 * aggregate.net_change},
          {"net_lower_pp", 100.0 * aggregate.lower},
          {"net_upper_pp", 100.0 * aggregate.upper},
          {"alpha", preservation.alpha},
          {"mcnemar_p", p_number(mcnemar)},
          {"mcnemar_log10_p", mcnemar.log10_p},
          {"preservation", {{"verdict", stats::verdict_name(preservation.verdict)}, {"limit_pct", options.limit_pct}}},
          {"aggregate", {{"verdict", stats::verdict_name(aggregate.verdict)}, {"margin_pp", options.margin_pp}}}};
}

// What follows "not established": how many cases the same shares would need.
std::string projection(const std::optional<int64_t>& cases) {
  if (!cases) return "no number of cases at the observed shares would clear it";
  return fmt::format("at the observed shares about {} cases would be needed", *cases);
}

void explain_preservation(const stats::GrossLossVerdict& v) {
  const double limit = 100.0 * v.limit;
  if (v.verdict == stats::Verdict::kPass) {
    say("Answer preservation passes: the candidate loses at most {:.3g} % of the cases, within {:.4g} %.\n",
        100.0 * v.upper, limit);
  } else if (v.verdict == stats::Verdict::kDegraded) {
    say("Answer preservation is degraded: the candidate loses at least {:.3g} % of the cases, more than {:.4g} %.\n",
        100.0 * v.lower, limit);
  } else {
    say("Answer preservation is not established: up to {:.3g} % may be lost, which does not clear {:.4g} %; {}.\n",
        100.0 * v.upper, limit, projection(stats::projected_cases_for_limit(v.counts, v.limit, v.alpha)));
  }
}

void explain_aggregate(const stats::NetChangeVerdict& v) {
  const double margin = 100.0 * v.margin;
  if (v.verdict == stats::Verdict::kPass) {
    say("Aggregate accuracy passes: it changes by {:+.3f} pp or better, within {:+.4g} pp.\n", 100.0 * v.lower, margin);
  } else if (v.verdict == stats::Verdict::kDegraded) {
    say("Aggregate accuracy is degraded: it changes by {:+.3f} pp or worse, beyond {:+.4g} pp.\n", 100.0 * v.upper,
        margin);
  } else {
    say("Aggregate accuracy is not established: it may change by {:+.3f} pp, which does not clear {:+.4g} pp; {}.\n",
        100.0 * v.lower, margin, projection(stats::projected_cases_for_margin(v.counts, v.margin, v.alpha)));
  }
}

// What these limits ask of any candidate, before the data: cases of a perfect one.
struct Reach {
  int64_t cases_for_limit = 0;
  int64_t cases_for_margin = 0;
};

Reach reach_of(const PairedOptions& options, double alpha) {
  const auto named = [alpha](std::string_view option, double value, const auto& count) {
    try {
      return count(value / 100.0, alpha);
    } catch (const Error& e) {
      throw_usage("{} {}: {}", option, value, e.what());
    }
  };
  return {named("--limit-pct", options.limit_pct, stats::cases_for_limit),
          named("--margin-pp", options.margin_pp, stats::cases_for_margin)};
}

void explain_reach(const Reach& reach, const stats::GrossLossVerdict& preservation) {
  say("At this alpha a perfect candidate needs n >= {} for the limit and n >= {} for the margin; ",
      reach.cases_for_limit, reach.cases_for_margin);
  const int64_t n = preservation.counts.n;
  const auto most = stats::most_losses_for_limit(n, preservation.limit, preservation.alpha);
  if (most) {
    say("with n = {} the limit is cleared by at most {} lost.\n", n, *most);
  } else {
    say("n = {} cannot clear the limit.\n", n);
  }
}

PairedAnswer answer_paired(const PairedOptions& options, double alpha) {
  check_open_percent("--limit-pct", options.limit_pct);
  if (!(options.margin_pp > -100.0 && options.margin_pp < 0.0)) {
    throw_usage("--margin-pp must lie between -100 and 0 (both excluded), but it is {}", options.margin_pp);
  }
  return {stats::preservation_verdict(options.counts, alpha, options.limit_pct / 100.0),
          stats::aggregate_verdict(options.counts, alpha, options.margin_pp / 100.0),
          stats::mcnemar_exact(options.counts.lost, options.counts.gained)};
}

int run_paired(const PairedOptions& options) {
  const double alpha = options.alpha.value();
  const PairedAnswer answer = answer_paired(options, alpha);
  const Reach reach = reach_of(options, alpha);  // before a word is printed: it can refuse a limit
  if (options.json) {
    print_json(paired_json(answer, options));
    return 0;
  }
  const auto& [gross, net, mcnemar] = answer;
  say("{} cases, {} lost, {} gained; alpha {:.6g} for each bound\n\n", options.counts.n, options.counts.lost,
      options.counts.gained, alpha);
  say("                 estimate       lower       upper   must be   verdict\n");
  say("gross loss, %  {:10.4f}  {:10.4f}  {:10.4f}  {:>8}   {}\n", 100.0 * gross.gross_loss, 100.0 * gross.lower,
      100.0 * gross.upper, fmt::format("<= {:.4g}", options.limit_pct), stats::verdict_words(gross.verdict));
  say("net change, pp {:+10.4f}  {:+10.4f}  {:+10.4f}  {:>8}   {}\n", 100.0 * net.net_change, 100.0 * net.lower,
      100.0 * net.upper, fmt::format(">= {:.4g}", options.margin_pp), stats::verdict_words(net.verdict));
  say("exact McNemar, two-sided: p = {}, log10 p = {:.3f}\n\n", stats::p_words(mcnemar), mcnemar.log10_p);
  explain_preservation(gross);
  explain_aggregate(net);
  explain_reach(reach, gross);
  return 0;
}

void add_paired(CLI::App& parent, Action& action) {
  auto options = std::make_shared<PairedOptions>();
  CLI::App* leaf = parent.add_subcommand("paired", "both objectives of the gate for one pair of arms");
  leaf->footer("Example:\n  asymkv stats paired --n 1319 --lost 6 --gained 3 --divisor 24");
  leaf->add_option("--n", options->counts.n, "cases that both arms answered")->required();
  leaf->add_option("--lost", options->counts.lost, "native correct, candidate wrong")->required();
  leaf->add_option("--gained", options->counts.gained, "native wrong, candidate correct")->required();
  options->alpha.add_to(*leaf);
  leaf->add_option("--limit-pct", options->limit_pct, "answer preservation: largest gross loss in %")
      ->capture_default_str();
  leaf->add_option("--margin-pp", options->margin_pp, "aggregate accuracy: smallest net change in pp")
      ->capture_default_str();
  run_with(leaf, action, options, run_paired);
}

// ---- stats binomial

struct BinomialOptions {
  int64_t k = 0;
  int64_t n = 0;
  double level = 0.95;
  std::string sided = "two";
  bool json = false;
};

Interval binomial_interval(const BinomialOptions& options) {
  if (options.sided == "two") return stats::clopper_pearson(options.k, options.n, options.level);
  if (!(options.level > 0.5 && options.level < 1.0)) {
    throw_usage("--level of a one-sided bound must lie between 0.5 and 1 (both excluded), but it is {}", options.level);
  }
  const double alpha = 1.0 - options.level;
  if (options.sided == "upper") return {0.0, stats::clopper_pearson_upper(options.k, options.n, alpha)};
  if (options.sided == "lower") return {stats::clopper_pearson_lower(options.k, options.n, alpha), 1.0};
  throw_usage("--sided must be two, upper or lower, but it is '{}'", options.sided);
}

int run_binomial(const BinomialOptions& options) {
  const Interval interval = binomial_interval(options);
  if (options.json) {
    print_json({{"lower", interval.lower}, {"upper", interval.upper}});
    return 0;
  }
  const double share = static_cast<double>(options.k) / static_cast<double>(options.n);
  say("        share       lower       upper\n{:12.8f}{:12.8f}{:12.8f}\n\n", share, interval.lower, interval.upper);
  say("{} of {}: with {:.6g} % confidence the true share is ", options.k, options.n, 100.0 * options.level);
  if (options.sided == "upper") {
    say("at most {:.4g} %", 100.0 * interval.upper);
  } else if (options.sided == "lower") {
    say("at least {:.4g} %", 100.0 * interval.lower);
  } else {
    say("between {:.4g} % and {:.4g} %", 100.0 * interval.lower, 100.0 * interval.upper);
  }
  say(" (Clopper-Pearson, exact).\n");
  return 0;
}

void add_binomial(CLI::App& parent, Action& action) {
  auto options = std::make_shared<BinomialOptions>();
  CLI::App* leaf = parent.add_subcommand("binomial", "Clopper-Pearson bounds of k in n");
  leaf->footer("Example:\n  asymkv stats binomial --k 0 --n 200 --level 0.95 --sided upper");
  leaf->add_option("--k", options->k, "successes")->required();
  leaf->add_option("--n", options->n, "trials")->required();
  leaf->add_option("--level", options->level, "confidence")->capture_default_str();
  leaf->add_option("--sided", options->sided, "two, upper or lower")->capture_default_str();
  run_with(leaf, action, options, run_binomial);
}

// ---- stats tango

struct TangoOptions {
  std::string table;
  double level = 0.95;
  bool json = false;
};

int run_tango(const TangoOptions& options) {
  const PairedCounts counts = parse_table(options.table);
  const Interval interval = stats::tango(counts, options.level);
  if (options.json) {
    print_json({{"estimate", counts.net_change()}, {"lower", interval.lower}, {"upper", interval.upper}});
    return 0;
  }
  say("  (b - c) / n       lower       upper\n{:+13.6f}{:+12.6f}{:+12.6f}\n\n", counts.net_change(), interval.lower,
      interval.upper);
  say("b = {} for, c = {} against in {} pairs: with {:.6g} % confidence the difference lies between {:+.3f} and "
      "{:+.3f} "
      "pp (Tango's score interval).\n",
      counts.gained, counts.lost, counts.n, 100.0 * options.level, 100.0 * interval.lower, 100.0 * interval.upper);
  return 0;
}

void add_tango(CLI::App& parent, Action& action) {
  auto options = std::make_shared<TangoOptions>();
  CLI::App* leaf = parent.add_subcommand("tango", "Tango's score interval of a matched-pair difference (b - c) / n");
  leaf->footer("Example:\n  asymkv stats tango --table 4,9,3,16 --level 0.95");
  leaf->add_option("--table", options->table, "counts a,b,c,d: both, first only, second only, neither")->required();
  leaf->add_option("--level", options->level, "confidence of the two-sided interval")->capture_default_str();
  run_with(leaf, action, options, run_tango);
}

// ---- stats mcnemar, stats sign

struct McNemarOptions {
  int64_t lost = 0;
  int64_t gained = 0;
  bool json = false;
};

Json p_json(const PValue& value) {
  return {{"p", p_number(value)}, {"log10_p", value.log10_p}};
}

void print_p(const PValue& value) {
  say("           p     log10 p\n{:>12}{:12.4f}\n\n", stats::p_words(value), value.log10_p);
}

int run_mcnemar(const McNemarOptions& options) {
  const PValue value = stats::mcnemar_exact(options.lost, options.gained);
  if (options.json) {
    print_json(p_json(value));
    return 0;
  }
  print_p(value);
  say("If lost and gained were equally likely, a split at least as uneven as {} to {} would come up with probability "
      "{} "
      "(exact, two-sided).\n",
      options.lost, options.gained, stats::p_words(value));
  return 0;
}

void add_mcnemar(CLI::App& parent, Action& action) {
  auto options = std::make_shared<McNemarOptions>();
  CLI::App* leaf = parent.add_subcommand("mcnemar", "exact test between two arms from their discordant pairs");
  leaf->footer("Example:\n  asymkv stats mcnemar --lost 80 --gained 59");
  leaf->add_option("--lost", options->lost, "first correct, second wrong")->required();
  leaf->add_option("--gained", options->gained, "first wrong, second correct")->required();
  run_with(leaf, action, options, run_mcnemar);
}

struct SignOptions {
  int64_t positive = 0;
  int64_t n = 0;
  bool json = false;
};

int run_sign(const SignOptions& options) {
  const PValue value = stats::sign_test(options.positive, options.n);
  if (options.json) {
    print_json(p_json(value));
    return 0;
  }
  print_p(value);
  say("If both signs were equally likely, {} of {} or a split at least as uneven would come up with probability {} "
      "(exact, two-sided).\n",
      options.positive, options.n, stats::p_words(value));
  return 0;
}

void add_sign(CLI::App& parent, Action& action) {
  auto options = std::make_shared<SignOptions>();
  CLI::App* leaf = parent.add_subcommand("sign", "exact sign test over blocks, ties dropped before");
  leaf->footer("Example:\n  asymkv stats sign --positive 9 --n 10");
  leaf->add_option("--positive", options->positive, "blocks in which the candidate was faster")->required();
  leaf->add_option("--n", options->n, "blocks without ties")->required();
  run_with(leaf, action, options, run_sign);
}

// ---- stats holm

struct HolmOptions {
  std::vector<std::string> p;
  bool json = false;
};

int run_holm(const HolmOptions& options) {
  const std::vector<PValue> values = parse_p_values(options.p);
  std::vector<double> p, log10_p;
  for (const PValue& value : values) {
    p.push_back(value.p);
    log10_p.push_back(value.log10_p);
  }
  const std::vector<double> adjusted = stats::holm(p), adjusted_log10 = stats::holm_log10(log10_p);
  if (options.json) {
    Json numbers = Json::array();
    for (size_t i = 0; i < adjusted.size(); ++i) numbers.push_back(p_number({adjusted[i], adjusted_log10[i]}));
    print_json({{"adjusted", std::move(numbers)}, {"log10_adjusted", adjusted_log10}});
    return 0;
  }
  say("           p    adjusted   at 0.05\n");
  int64_t rejected = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const PValue after = {adjusted[i], adjusted_log10[i]};
    const bool small = after.log10_p <= std::log10(0.05);
    rejected += small ? 1 : 0;
    say("{:>12}{:>12}   {}\n", stats::p_words(values[i]), stats::p_words(after), small ? "differs" : "not shown");
  }
  say("\n{} of {} hypotheses stand at a family-wise error rate of 5 % (Holm).\n", rejected, values.size());
  return 0;
}

void add_holm(CLI::App& parent, Action& action) {
  auto options = std::make_shared<HolmOptions>();
  CLI::App* leaf = parent.add_subcommand("holm", "Holm's adjustment of a family of p values, in the order given");
  leaf->footer("Example:\n  asymkv stats holm 0.0053 0.83 0.188 0.0020");
  leaf->add_option("P", options->p, "p values; 2.32e-361 and smaller are fine")->required();
  run_with(leaf, action, options, run_holm);
}

// ---- stats bootstrap

struct BootstrapCommandOptions {
  std::string pairs;
  int64_t resamples = 100'000;
  std::string seed = "1";  // text, since a number option would wrap -1 around
  AlphaOptions alpha;
  bool json = false;
};

void print_bootstrap_row(const stats::LossRatio& ratio) {
  say("{:>20} {:+14.6f} {:+12.6f} {:+12.6f}\n", ratio.options.seed, 100.0 * ratio.ratio_minus_1, 100.0 * ratio.lower,
      100.0 * ratio.upper);
}

int run_bootstrap(const BootstrapCommandOptions& options) {
  const double alpha = options.alpha.value();
  const uint64_t seed = parse_seed(options.seed);
  const std::vector<stats::PairedLoss> documents = read_loss_pairs(options.pairs);
  const stats::LossRatio ratio = stats::bootstrap_loss_ratio(documents, {options.resamples, seed, alpha});
  if (options.json) {
    print_json(
        {{"ratio_minus_1", ratio.ratio_minus_1}, {"lower", ratio.lower}, {"upper", ratio.upper}, {"seed", seed}});
    return 0;
  }
  const stats::LossRatio again = stats::bootstrap_loss_ratio(documents, {options.resamples, seed + 1, alpha});
  say("{} documents, {} resamples, alpha {:.6g} for each bound; the document that moves most holds {:.1f} % of all "
      "movement\n\n",
      ratio.documents, options.resamples, alpha, 100.0 * ratio.largest_delta_share);
  say("                seed  loss change, %        lower        upper\n");
  print_bootstrap_row(ratio);
  print_bootstrap_row(again);
  say("\nThe candidate's mean loss is {:+.3f} % of native's; with {:.6g} % confidence it is {:+.3f} % at most: {} at "
      "the "
      "limit of {:+.4g} %.\n",
      100.0 * ratio.ratio_minus_1, 100.0 * (1.0 - alpha), 100.0 * ratio.upper,
      stats::verdict_words(stats::loss_verdict(ratio).verdict), 100.0 * stats::kLossLimit);
  return 0;
}

void add_bootstrap(CLI::App& parent, Action& action) {
  auto options = std::make_shared<BootstrapCommandOptions>();
  CLI::App* leaf = parent.add_subcommand("bootstrap", "paired bootstrap of candidate / native mean loss - 1");
  leaf->footer("Example:\n  asymkv stats bootstrap --pairs losses.txt --resamples 100000 --seed 1 --alpha 0.0125");
  leaf->add_option("--pairs", options->pairs, "file: one 'native candidate' pair of mean losses a line")->required();
  leaf->add_option("--resamples", options->resamples, "resamples of the documents")->capture_default_str();
  leaf->add_option("--seed", options->seed, "seed of the resamples")->capture_default_str();
  options->alpha.add_to(*leaf);
  run_with(leaf, action, options, run_bootstrap);
}

}  // namespace

void add_stats_command(CLI::App& root, Action& action) {
  CLI::App* command = root.add_subcommand("stats", "the gate's statistics by hand, for counts from anywhere");
  command->require_subcommand(1);
  command->footer("Example:\n  asymkv stats paired --n 1319 --lost 6 --gained 3 --divisor 24");
  for (const AddCommand add : {add_paired, add_binomial, add_tango, add_mcnemar, add_sign, add_holm, add_bootstrap}) {
    add(*command, action);
  }
  add_stats_cases_command(*command, action);
  add_stats_looks_command(*command, action);
  add_stats_speed_command(*command, action);
}

}  // namespace asymkv::app
