#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "asymkv/base/jsonl.h"
#include "asymkv/gate/run_folder.h"

namespace asymkv {

// Throws Error{kBadInput} where a file of the folder that says what is run is there and says something else.
void require_same_files(const RunRequest& request, const std::vector<ArmId>& arms);

// Owns a run folder while the run goes on. Opening it starts a run, or brings a killed one back to its last finished
// unit; the errors are those of run_panels.
class RunWriter {
 public:
  RunWriter(const RunRequest& request, const std::vector<Unit>& plan, const std::vector<ArmId>& arms);
  // Units that are finished; the next one to run has this index.
  int64_t units_done() const { return units_done_; }
  const std::vector<std::string>& repairs() const { return repairs_; }

  // `lines` per arm in run order: the unit's outcomes, whole lines. On disk when it returns.
  void commit(const Unit& unit, const std::vector<std::string>& lines);

 private:
  void start(const RunRequest& request);
  void remove_temporaries();
  void check_or_write(std::string_view name, const std::string& bytes, bool may_write);
  void resume(const std::vector<Unit>& plan);
  void cut_outcomes(const std::vector<Unit>& plan);

  std::filesystem::path folder_;
  std::vector<ArmId> arms_;
  std::shared_ptr<FolderLock> lock_;
  std::vector<int64_t> unit_indices_;  // of the plan
  int64_t units_done_ = 0;
  std::map<std::string, int64_t> end_bytes_;  // by arm name
  std::vector<std::string> repairs_;
  std::vector<std::unique_ptr<JsonlAppender>> outcomes_;  // by arm
  std::unique_ptr<JsonlAppender> progress_;
};

}  // namespace asymkv
