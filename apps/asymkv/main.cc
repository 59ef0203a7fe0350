// The asymkv program: reads the command line, runs one subcommand, maps errors to exit codes (docs/cli.md).

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"
#include "command.h"
#include "run_record.h"

namespace asymkv::app {

void print_json(const Json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

namespace {

constexpr AddCommand kCommands[] = {add_admit_command, add_calibrate_command, add_probe_command,  add_generate_command,
                                    add_model_command, add_stats_command,     add_doctor_command, add_gate_command,
                                    add_bench_command, add_chat_command};

int run(int argc, char** argv) {
  CLI::App root("asymkv: KV caches whose keys and values have different formats, admitted by evidence", "asymkv");
  root.require_subcommand(1);
  root.set_version_flag("--version", fmt::format("asymkv {}", kVersion));
  Action action;
  for (const AddCommand add : kCommands) add(root, action);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    const int code = root.exit(e, asked_for_help ? std::cout : std::cerr, std::cerr);
    return code == 0 ? 0 : exit_code(ErrorCode::kUsage);
  }
  install_interrupt_handler();
  remember_argv(argc, argv);
  return action();
}

}  // namespace
}  // namespace asymkv::app

int main(int argc, char** argv) {
  using asymkv::ErrorCode;
  try {
    return asymkv::app::run(argc, argv);
  } catch (const asymkv::Error& e) {
    fmt::print(stderr, "asymkv: {}\n", e.what());
    return asymkv::exit_code(e.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "asymkv: out of memory\n");
    return asymkv::exit_code(ErrorCode::kResourceExhausted);
  } catch (const std::exception& e) {
    fmt::print(stderr, "asymkv: internal error: {}\n", e.what());
    return asymkv::exit_code(ErrorCode::kInternal);
  }
}
