#include "llama_bench.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace asymkv::app {
namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

std::string program_output(const std::vector<std::string>& argv) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_error(ErrorCode::kResourceExhausted, "pipe: {}", std::strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  if (error == 0) text = read_all(ends[0]);
  ::close(ends[0]);
  if (error != 0) throw_usage("cannot run {}: {}", argv[0], std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw_usage("{} failed (status {}): run it by hand to see why", argv[0], status);
  }
  return text;
}

double run_llama_bench(const std::string& program, const LlamaBenchCase& bench) {
  const std::string text = program_output({program,
                                           "-m",
                                           bench.model,
                                           "-t",
                                           std::to_string(bench.threads),
                                           "-p",
                                           std::to_string(bench.prompt),
                                           "-n",
                                           std::to_string(bench.generated),
                                           "-d",
                                           std::to_string(bench.depth),
                                           "-ctk",
                                           bench.key_type,
                                           "-ctv",
                                           bench.value_type,
                                           "-fa",
                                           "1",
                                           "-ngl",
                                           "0",
                                           "-r",
                                           "1",
                                           "-o",
                                           "json"});
  const std::string origin = program + " output";
  const Json rows = parse_json(text, origin);
  if (!rows.is_array() || rows.size() != 1) throw_bad_input("{}: expected one result", origin);
  const Json& rate = require_field(rows[0], "avg_ts", origin);
  if (!rate.is_number() || rate.get<double>() <= 0) throw_bad_input("{}: field \"avg_ts\" is no rate", origin);
  return rate.get<double>();
}

}  // namespace asymkv::app
