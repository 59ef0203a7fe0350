#include "asymkv/gate/run_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/run_files.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

// Path of the first value in which two JSON values differ, with both values; empty if they are equal.
std::string first_difference(const Json& before, const Json& now, const std::string& at) {
  if (before == now) return {};
  if (before.is_object() && now.is_object()) {
    std::set<std::string> keys;
    for (const auto& [key, value] : before.items()) keys.insert(key);
    for (const auto& [key, value] : now.items()) keys.insert(key);
    for (const std::string& key : keys) {
      const Json none;
      const Json& a = before.contains(key) ? before.at(key) : none;
      const Json& b = now.contains(key) ? now.at(key) : none;
      if (std::string found = first_difference(a, b, at.empty() ? key : at + "." + key); !found.empty()) return found;
    }
  }
  if (before.is_array() && now.is_array() && before.size() == now.size()) {
    for (size_t i = 0; i < before.size(); ++i) {
      if (std::string found = first_difference(before[i], now[i], fmt::format("{}[{}]", at, i)); !found.empty()) {
        return found;
      }
    }
  }
  return fmt::format("\"{}\" is {} there and {} now", at, before.dump(), now.dump());
}

// Number of the first line in which two texts differ.
int64_t first_different_line(std::string_view a, std::string_view b) {
  int64_t line = 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) line += a[i] == '\n' ? 1 : 0;
  return line;
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) throw_error(ErrorCode::kResourceExhausted, "cannot sync {}: {}", folder.string(), std::strerror(error));
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error(ErrorCode::kResourceExhausted, "cannot create {}: {}", folder.string(), error.message());
}

void truncate_file(const fs::path& path, int64_t size) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) throw_error(ErrorCode::kResourceExhausted, "cannot cut {}: {}", path.string(), std::strerror(error));
}

bool is_run_file(const std::string& name) {
  return name == run_files::kProtocol || name == run_files::kCases || name == run_files::kRun ||
         name == run_files::kProgress || name == run_files::kOutcomes;
}

bool is_result_file(const std::string& name) {
  return name == run_files::kScales || name == run_files::kRecord || name == run_files::kCertificate ||
         name == run_files::kPolicy || name == run_files::kReport;
}

// What write_file_atomic leaves behind when it is killed: "cases.jsonl.tmp1234".
bool is_temporary(const std::string& name) {
  const size_t mark = name.rfind(".tmp");
  if (mark == std::string::npos || name.find_first_not_of("0123456789", mark + 4) != std::string::npos) return false;
  return is_run_file(name.substr(0, mark)) || is_result_file(name.substr(0, mark));
}

bool holds_a_run(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return is_run_file(name) || is_temporary(name);
  });
}

// Names and bytes of the files that say what is run.
std::vector<std::pair<std::string_view, std::string>> fixed_files(const RunRequest& request,
                                                                  const std::vector<ArmId>& arms) {
  std::string protocol = canonical_json(protocol_to_json(request.protocol));
  std::string cases = cases_to_jsonl(request.cases);
  const run_files::Header header{request.identity, arms,          sha256_hex(protocol), sha256_hex(cases),
                                 request.mode,     request.cache, request.shard};
  return {{run_files::kProtocol, std::move(protocol)},
          {run_files::kRun, canonical_json(run_files::header_to_json(header))},
          {run_files::kCases, std::move(cases)}};
}

void require_same(const fs::path& path, std::string_view name, const std::string& bytes) {
  const std::string before = read_text_file(path);
  if (before == bytes) return;
  if (name == run_files::kCases) {
    throw_bad_input(
        "{}:{} differs from the case that this run would ask: resume with the program that began it, or run "
        "again into an empty folder",
        path.string(), first_different_line(before, bytes));
  }
  const std::string difference = first_difference(parse_json(before, path.string()), parse_json(bytes, name), "");
  throw_bad_input("{}: {}: a run resumes only unchanged, so run again into an empty folder", path.string(),
                  difference.empty() ? "its bytes differ" : difference);
}

// Whole lines of a file from a byte on.
int64_t count_lines_from(const fs::path& path, int64_t begin) {
  const std::string text = read_text_file(path);
  return std::ranges::count(std::string_view(text).substr(static_cast<size_t>(begin)), '\n');
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder, bool resume) {
  const bool exists = fs::exists(folder);
  if (exists && !fs::is_directory(folder)) throw_usage("{} is not a folder", folder.string());
  if (exists && !fs::is_empty(folder)) {
    if (!resume) throw_usage("{} is not empty: resume the run in it, or name another folder", folder.string());
    if (!holds_a_run(folder)) throw_usage("{} holds no run to resume", folder.string());
  }
  for (fs::path path = folder; !path.empty() && !fs::exists(path); path = path.parent_path()) made_.push_back(path);
  make_folders(folder);
  fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool locked = fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  if (locked && ::access(folder.c_str(), W_OK) == 0) return;
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  if (error == EWOULDBLOCK) throw_usage("another process is writing the run in {}", folder.string());
  throw_error(ErrorCode::kResourceExhausted, "cannot {} {}: {}", locked ? "write into" : "lock", folder.string(),
              std::strerror(error));
}

FolderLock::~FolderLock() {
  std::error_code ignored;  // a folder that is not empty stays
  for (const fs::path& path : made_) fs::remove(path, ignored);
  ::close(fd_);
}

void require_same_files(const RunRequest& request, const std::vector<ArmId>& arms) {
  for (const auto& [name, bytes] : fixed_files(request, arms)) {
    if (const fs::path path = request.folder / name; fs::exists(path)) require_same(path, name, bytes);
  }
}

RunWriter::RunWriter(const RunRequest& request, const std::vector<Unit>& plan, const std::vector<ArmId>& arms)
    : folder_(request.folder),
      arms_(arms),
      lock_(request.lock ? request.lock : std::make_shared<FolderLock>(folder_, request.resume)) {
  for (const Unit& unit : plan) unit_indices_.push_back(unit.index);
  start(request);
  resume(plan);
  for (const ArmId arm : arms_) {
    outcomes_.push_back(std::make_unique<JsonlAppender>(run_files::outcomes_path(folder_, arm)));
  }
  progress_ = std::make_unique<JsonlAppender>(folder_ / run_files::kProgress);
  sync_folder(folder_ / run_files::kOutcomes);
  sync_folder(folder_);
}

void RunWriter::start(const RunRequest& request) {
  remove_temporaries();
  const bool anything = fs::exists(folder_ / run_files::kCases) || fs::exists(folder_ / run_files::kRun) ||
                        fs::exists(folder_ / run_files::kProtocol);
  if (request.resume && !anything) {
    if (!fs::is_empty(folder_)) throw_usage("{} holds no run to resume", folder_.string());
    repairs_.push_back(fmt::format("{} held nothing to resume: started from the first case", folder_.string()));
  }
  // A run that was killed while these were being written has no progress yet; what is missing then is written now.
  const bool may_write = !fs::exists(folder_ / run_files::kProgress);
  for (const auto& [name, bytes] : fixed_files(request, arms_)) check_or_write(name, bytes, may_write);
  make_folders(folder_ / run_files::kOutcomes);
}

void RunWriter::remove_temporaries() {
  std::vector<fs::path> temporaries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    if (is_temporary(entry.path().filename().string())) temporaries.push_back(entry.path());
  }
  for (const fs::path& path : temporaries) {
    fs::remove(path);
    repairs_.push_back(fmt::format("{} was left half-written: removed", path.string()));
  }
}

void RunWriter::check_or_write(std::string_view name, const std::string& bytes, bool may_write) {
  const fs::path path = folder_ / name;
  if (!fs::exists(path)) {
    if (!may_write) throw_bad_input("{} is missing: run again into an empty folder", path.string());
    write_file_atomic(path, bytes);
    return;
  }
  require_same(path, name, bytes);
}

void RunWriter::resume(const std::vector<Unit>& plan) {
  for (const ArmId arm : arms_) end_bytes_[std::string(arm_name(arm))] = 0;
  const fs::path path = folder_ / run_files::kProgress;
  const JsonlRepair progress = read_jsonl_repair(path);
  if (progress.torn_bytes > 0) {
    repairs_.push_back(fmt::format("{}: cut {} bytes of a torn last line", path.string(), progress.torn_bytes));
  }
  const auto commits = run_files::parse_commits(progress.lines, path, plan);
  run_files::read_commits(folder_, arms_, commits);
  units_done_ = std::ssize(commits);
  if (!commits.empty()) end_bytes_ = commits.back().end_bytes;
  cut_outcomes(plan);
}

// A kill leaves at most one unit's answers without their progress line; more means that progress.jsonl lost some.
void RunWriter::cut_outcomes(const std::vector<Unit>& plan) {
  const fs::path progress = folder_ / run_files::kProgress;
  const auto next = static_cast<size_t>(units_done_);
  // Answers are written only once progress.jsonl is there.
  const int64_t allowed = next < plan.size() && fs::exists(progress) ? std::ssize(plan[next].cases) : 0;
  for (const ArmId arm : arms_) {
    const fs::path path = run_files::outcomes_path(folder_, arm);
    if (!fs::exists(path)) continue;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    const int64_t end = end_bytes_.at(std::string(arm_name(arm)));
    if (size == end) continue;
    if (const int64_t lines = count_lines_from(path, end); lines > allowed) {
      throw_bad_input(
          "{} names {} finished units, but {} holds {} answers after them: lines of it were lost, so put them back, or "
          "run again into an empty folder",
          progress.string(), units_done_, path.string(), lines);
    }
    truncate_file(path, end);
    repairs_.push_back(
        fmt::format("{}: cut {} bytes of unit {}, which had not finished", path.string(), size - end, units_done_));
  }
}

void RunWriter::commit(const Unit& unit, const std::vector<std::string>& lines) {
  ASYMKV_CHECK(unit.index == unit_indices_.at(static_cast<size_t>(units_done_)) && lines.size() == arms_.size(),
               "unit {} after {} units, {} arms of {}", unit.index, units_done_, lines.size(), arms_.size());
  Sha256 hash;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;  // an arm that stopped at an earlier look
    outcomes_[i]->append(lines[i]);
    hash.update(std::string_view(lines[i]));
    end_bytes_[std::string(arm_name(arms_[i]))] += std::ssize(lines[i]);
  }
  const run_files::Commit commit{unit.index, unit.panel, std::ssize(unit.cases), end_bytes_, hash.hex_digest()};
  progress_->append(canonical_json(run_files::commit_to_json(commit)) + '\n');
  ++units_done_;
}

}  // namespace asymkv
