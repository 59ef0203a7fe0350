#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace asymkv::app {

// Makes every option that takes a number refuse what CLI11 guesses at: an empty text (0), a leading zero
// (octal), a sign before an unsigned number and a number out of range (both wrap around). Every option that takes a
// text refuses an empty one, which as a path would mean the current folder; --prompt and --system may be empty.
void read_values_strictly(CLI::App& root);

// An option that takes one comma-separated list; an empty element or a text that is no number is refused by name.
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int32_t>& values,
                             const std::string& help);
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int64_t>& values,
                             const std::string& help);
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<double>& values,
                             const std::string& help);
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                             const std::string& help);

// --device: what runtime/backends.h calls the families.
void add_device_option(CLI::App& command, std::string& device);

}  // namespace asymkv::app
