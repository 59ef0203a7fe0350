#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>

#include "asymkv/gate/policy_file.h"
#include "asymkv/kv/cache.h"
#include "kv_options.h"

namespace asymkv::app {

// --policy FILE in place of --kv and --scale: the format that a run of the gate chose, and nothing that the run was not
// about. Fixed scales are read from scales.json beside the file.
class ServedPolicy {
 public:
  void add_option(CLI::App& command);
  // Reads the file and sets format and scales in `kv`. Does nothing without --policy.
  void apply(KvOptions& kv);
  // Tokens of a sequence that it speaks for, at most `most`.
  int64_t most_context_tokens(int64_t most) const;
  // Throws Error{kBadInput} naming the field in which model, worker, build, scales, key bias, path or context differ
  // from what the policy was made for.
  void require(const LoadedModel& model, const KvCache& cache, std::string_view path, int64_t context_tokens) const;

 private:
  std::filesystem::path file_;
  std::optional<ServingPolicy> policy_;
};

}  // namespace asymkv::app
