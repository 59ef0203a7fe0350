#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/stats/bootstrap.h"
#include "asymkv/stats/intervals.h"
#include "asymkv/stats/significance.h"
#include "asymkv/stats/speed.h"
#include "command.h"

namespace asymkv::app {

// Every subcommand of stats: --json, and its options kept alive by the closure that runs it.
template <typename Options>
void run_with(CLI::App* leaf, Action& action, const std::shared_ptr<Options>& options, int (*run)(const Options&)) {
  leaf->add_flag("--json", options->json, "one JSON object on stdout");
  leaf->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
}

// In files of their own.
void add_stats_cases_command(CLI::App& stats, Action& action);
void add_stats_looks_command(CLI::App& stats, Action& action);
void add_stats_speed_command(CLI::App& stats, Action& action);

// p as a JSON number, null where it is too small for a double: its logarithm stands beside it.
Json p_number(const stats::PValue& value);

// --alpha A, or --divisor D for alpha = 0.05 / D; 0.05 with neither.
struct AlphaOptions {
  std::optional<double> alpha;
  std::optional<double> divisor;
  void add_to(CLI::App& command);
  // Throws Error{kUsage} if a given value cannot be an error probability of one bound.
  double value() const;
};

// Throws Error{kUsage} naming the option unless the value lies between 0 and 100, both excluded.
void check_open_percent(std::string_view option, double value);

// "a,b,c,d", four counts of a matched-pair table: lost = c, gained = b, n = their sum. Throws Error{kUsage}.
stats::PairedCounts parse_table(const std::string& text);

// A number from 0 to 2^64 - 1. Throws Error{kUsage}.
uint64_t parse_seed(const std::string& text);

// Decimal numbers in [0, 1], also below the range of a double ("2.32e-361"). Throws Error{kUsage}.
std::vector<stats::PValue> parse_p_values(const std::vector<std::string>& texts);

// One "native candidate" pair of positive mean losses a line; empty lines are skipped. Throws Error{kBadInput} naming
// file and line.
std::vector<stats::PairedLoss> read_loss_pairs(const std::filesystem::path& path);

// One "candidate control" pair of positive rates a line, likewise.
std::vector<stats::SpeedBlock> read_speed_blocks(const std::filesystem::path& path);

}  // namespace asymkv::app
