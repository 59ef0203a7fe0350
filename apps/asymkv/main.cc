// The asymkv program: reads the command line, runs one subcommand, maps errors to exit codes (docs/cli.md).

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <system_error>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/progress.h"
#include "command.h"
#include "option_values.h"
#include "run_record.h"

namespace asymkv::app {

void print_json(const Json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

namespace {

constexpr AddCommand kCommands[] = {add_admit_command, add_calibrate_command, add_probe_command,  add_generate_command,
                                    add_model_command, add_stats_command,     add_doctor_command, add_gate_command,
                                    add_bench_command, add_chat_command,      add_plan_command,   add_record_command};

// A closed standard stream's number would go to the next file opened, whose content words would then overwrite. The
// stand-in of stdout cannot be written to: an answer that nobody receives is an error.
void open_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void check_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw_error(ErrorCode::kResourceExhausted, "cannot write to standard output: {}", std::strerror(errno));
  }
}

// CLI11 would say that a subcommand is required, whatever stands in its place.
void check_command_known(const CLI::App& parent, std::span<char*> words) {
  if (parent.get_subcommands({}).empty() || (!words.empty() && words.front()[0] == '-')) return;
  std::string known;
  for (const CLI::App* command : parent.get_subcommands({})) {
    if (!words.empty() && command->get_name() == words.front()) return check_command_known(*command, words.subspan(1));
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  const std::string of = parent.get_parent() == nullptr ? "" : fmt::format(" of {}", parent.get_name());
  if (words.empty()) throw_usage("a command{} is missing; known: {}", of, known);
  throw_usage("\"{}\" is no command{}; known: {}", words.front(), of, known);
}

int run(int argc, char** argv) {
  CLI::App root("asymkv: KV caches whose keys and values have different formats, admitted by evidence", "asymkv");
  root.require_subcommand(1);
  root.footer(
      "Each command has --help. From the source tree:\n"
      "  asymkv generate models/probe-robust --prompt \"The old farmer\"\n"
      "  asymkv admit models/probe-fragile --out run-fragile");
  root.set_version_flag("--version", fmt::format("asymkv {}", kVersion));
  Action action;
  for (const AddCommand add : kCommands) add(root, action);
  read_values_strictly(root);
  check_command_known(root, std::span(argv, static_cast<size_t>(argc)).subspan(1));
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    const int code = root.exit(e, asked_for_help ? std::cout : std::cerr, std::cerr);
    if (code == 0) check_stdout();
    return code == 0 ? 0 : exit_code(ErrorCode::kUsage);
  }
  install_interrupt_handler();
  remember_argv(argc, argv);
  const int status = action();
  check_stdout();
  return status;
}

}  // namespace
}  // namespace asymkv::app

int main(int argc, char** argv) {
  using asymkv::ErrorCode;
  using asymkv::print_note;
  asymkv::app::open_closed_streams();
  try {
    return asymkv::app::run(argc, argv);
  } catch (const asymkv::Error& e) {
    print_note("asymkv: {}\n", e.what());
    return asymkv::exit_code(e.code());
  } catch (const std::bad_alloc&) {
    print_note("asymkv: out of memory\n");
    return asymkv::exit_code(ErrorCode::kResourceExhausted);
  } catch (const std::system_error& e) {  // fmt, on a stream that takes no more
    print_note("asymkv: {}\n", e.what());
    return asymkv::exit_code(ErrorCode::kResourceExhausted);
  } catch (const std::exception& e) {
    print_note("asymkv: internal error: {}\n", e.what());
    return asymkv::exit_code(ErrorCode::kInternal);
  }
}
