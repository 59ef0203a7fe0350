#pragma once

#include <filesystem>

#include "asymkv/base/json.h"
#include "plan_options.h"

namespace asymkv::app {

// plan --sweep: how many sequences fit at once, by their length and format (native and the arms of the gate). Lengths:
// --contexts, or the powers of two from 1,024 up to the model's positions (131,072 where they are not known).
// JSON: arms [{arm, key, value, scale, bytes_per_token}], rows [{tokens, sequences {ARM: N}}].
Json sweep_plan(const PlanOptions& options, const PlanInputs& inputs);
void print_sweep(const Json& sweep);

// Draws a sweep into an .svg or .png file; `title` says of what. Throws what check_plot_file throws.
void plot_sweep(const Json& sweep, const std::string& title, const std::filesystem::path& path);
// Throws Error{kUsage} for another ending and for a file that cannot be written.
void check_plot_file(const std::filesystem::path& path);

}  // namespace asymkv::app
