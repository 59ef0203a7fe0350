#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "asymkv/base/json.h"

namespace asymkv::app {

inline constexpr const char* kVersion = "0.1.0";

// What the chosen subcommand will do once the command line has been read; returns the process exit code.
using Action = std::function<int()>;

// One function per subcommand file: adds the subcommand with its options and, in its callback, sets `action`.
using AddCommand = void (*)(CLI::App& root, Action& action);

void add_admit_command(CLI::App& root, Action& action);
void add_bench_command(CLI::App& root, Action& action);
void add_bench_engine_command(CLI::App& bench, Action& action);
void add_calibrate_command(CLI::App& root, Action& action);
void add_chat_command(CLI::App& root, Action& action);
void add_doctor_command(CLI::App& root, Action& action);
void add_gate_command(CLI::App& root, Action& action);
void add_gate_compare_command(CLI::App& gate, Action& action);
void add_generate_command(CLI::App& root, Action& action);
void add_model_command(CLI::App& root, Action& action);
void add_plan_command(CLI::App& root, Action& action);
void add_probe_command(CLI::App& root, Action& action);
void add_record_command(CLI::App& root, Action& action);
void add_stats_command(CLI::App& root, Action& action);

// Prints one JSON object and a newline on stdout. Human text and progress go to stderr, so --json output stays clean.
void print_json(const Json& value);

}  // namespace asymkv::app
