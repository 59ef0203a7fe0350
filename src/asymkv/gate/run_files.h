#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/run_folder.h"

// The bytes of a run folder, shared by its writer and its reader.
namespace asymkv::run_files {

inline constexpr std::string_view kProtocol = "protocol.json";
inline constexpr std::string_view kCases = "cases.jsonl";
inline constexpr std::string_view kRun = "run.json";
inline constexpr std::string_view kProgress = "progress.jsonl";
inline constexpr std::string_view kOutcomes = "outcomes";
// Beside them in the end: scales.json only where an arm has fixed scales; record.json grows with every unit.
inline constexpr std::string_view kScales = "scales.json";
inline constexpr std::string_view kRecord = "record.json";
inline constexpr std::string_view kCertificate = "certificate.json";
inline constexpr std::string_view kPolicy = "policy.json";
inline constexpr std::string_view kReport = "report.html";

std::filesystem::path outcomes_path(const std::filesystem::path& folder, ArmId arm);

// run.json.
struct Header {
  RunIdentity identity;
  std::vector<ArmId> arms;  // N2 included
  std::string protocol_sha256;
  std::string cases_sha256;
  PolicyMode mode = PolicyMode::kKnee;
  CacheShape cache;
  Shard shard;
};
Json header_to_json(const Header& header);
Header header_from_json(const Json& json, std::string_view origin);

// One line of progress.jsonl: a unit whose outcomes are on disk.
struct Commit {
  int64_t unit = 0;
  std::string panel;
  int64_t cases = 0;
  std::map<std::string, int64_t> end_bytes;  // by name of every arm: size of its outcomes file after this unit
  std::string sha256;                        // of the unit's lines, arm after arm in run order

  bool operator==(const Commit&) const = default;
};
Json commit_to_json(const Commit& commit);
Commit commit_from_json(const Json& json, std::string_view origin);

// Throws Error{kBadInput} naming the file, unless its SHA-256 is the one that run.json names.
void check_hash(const std::filesystem::path& path, const std::string& expected);

// The lines of progress.jsonl, none of them torn. Throws Error{kBadInput} naming the file.
std::vector<std::string> progress_lines(const std::filesystem::path& path);

// The commits of a run checked against its plan: consecutive units with the plan's panels and case counts, growing
// files. `lines` are those of progress.jsonl. Throws Error{kBadInput} naming the line.
std::vector<Commit> parse_commits(const std::vector<std::string>& lines, const std::filesystem::path& path,
                                  const std::vector<Unit>& plan);

// The lines of every committed unit, per arm in run order: [commit][arm]. Compares the outcome files with what the
// commits say of them: throws Error{kBadInput} naming the file that is too short or the unit whose lines were changed.
std::vector<std::vector<std::string>> read_commits(const std::filesystem::path& folder, const std::vector<ArmId>& arms,
                                                   const std::vector<Commit>& commits);

}  // namespace asymkv::run_files
