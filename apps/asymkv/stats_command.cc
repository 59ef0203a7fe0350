#include "command.h"

namespace asymkv::app {

void add_stats_command(CLI::App& root, Action& action) {
  CLI::App* command = root.add_subcommand("stats", "the gate's statistics by hand, for counts from anywhere");
  command->callback([&action] { action = [] { return 0; }; });
}

}  // namespace asymkv::app
