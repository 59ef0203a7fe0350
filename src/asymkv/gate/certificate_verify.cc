#include "asymkv/gate/certificate_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/certificate.h"
#include "asymkv/gate/evidence_check.h"
#include "asymkv/gate/jsonl_reader.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/score.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

constexpr double kRelativeTolerance = 1e-9;
using run_files::kCertificate;
using run_files::kPolicy;
using run_files::kRecord;
using run_files::kReport;

bool numbers_agree(const Json& a, const Json& b) {
  if (a.is_number_integer() && b.is_number_integer()) return a == b;
  const double x = a.get<double>(), y = b.get<double>();
  return x == y || std::fabs(x - y) <= kRelativeTolerance * std::max(std::fabs(x), std::fabs(y));
}

std::string child(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

void add_object_differences(const Json& recorded, const Json& recomputed, const std::string& path,
                            std::vector<Mismatch>& found) {
  std::set<std::string> keys;
  for (const auto& [key, value] : recorded.items()) keys.insert(key);
  for (const auto& [key, value] : recomputed.items()) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string at = child(path, key);
    if (!recorded.contains(key)) {
      found.push_back({at, "", recomputed.at(key).dump()});
    } else if (!recomputed.contains(key)) {
      found.push_back({at, recorded.at(key).dump(), "no such field"});
    } else {
      std::ranges::move(json_differences(recorded.at(key), recomputed.at(key), at), std::back_inserter(found));
    }
  }
}

// The steps of one verification. Each adds what it finds; a step that cannot go on says why and stops the rest.
class Verifier {
 public:
  Verifier(const fs::path& folder, std::string_view own_build)
      : folder_(folder),
        own_build_(own_build),
        origin_((folder / kCertificate).string()),
        bytes_(read_text_file(folder / kCertificate)),
        certificate_(parse_json(bytes_, origin_)) {}

  Verification run() {
    check_canonical_bytes();
    check_file_hashes();
    // The run's own checks: progress.jsonl knows each unit's bytes, run.json the protocol and cases.
    attempt("run", [this] { run_ = read_run(folder_); });
    // The evidence alone, so that a changed outcome still gets its own path.
    if (!run_) attempt("outcomes", [this] { run_ = read_evidence(folder_); });
    if (!run_) return {std::move(found_), std::nullopt, {}};
    check_outcomes();
    attempt(std::string(run_files::kScales), [this] { take(check_scales(folder_, *run_)); });
    attempt(std::string(kRecord), [this] {
      record_ = read_admission_record(folder_);
      take(check_record(*record_, *run_));
    });
    attempt("certificate", [this] { check_certificate(); });
    return {std::move(found_), std::move(finished_), std::move(report_note_)};
  }

 private:
  void add(std::string path, std::string recorded, std::string recomputed) {
    found_.push_back({std::move(path), std::move(recorded), std::move(recomputed)});
  }

  template <typename Step>
  void attempt(const std::string& path, const Step& step) {
    try {
      step();
    } catch (const Error& e) {
      add(path, "", e.what());
    }
  }

  // Hashes and comparisons see values; these see each byte of the files that no hash covers.
  void check_canonical_bytes() {
    for (const std::string_view name : {kCertificate, run_files::kRun, run_files::kScales, kRecord, kPolicy}) {
      const fs::path file = folder_ / name;
      if (!fs::exists(file)) continue;  // named by the check of its content
      attempt(std::string(name), [&] {
        const std::string text = read_text_file(file);
        const std::string end = name == run_files::kRun ? "" : "\n";
        compare_bytes(name, text, canonical_json(parse_json(text, file.string())) + end);
      });
    }
    attempt(std::string(run_files::kProgress), [&] {
      const fs::path file = folder_ / run_files::kProgress;
      std::string lines;
      read_jsonl(file, [&](const Json& line, const std::string&) { lines += canonical_json(line) + '\n'; });
      compare_bytes(run_files::kProgress, read_text_file(file), lines);
    });
  }

  void compare_bytes(std::string_view name, const std::string& text, const std::string& canonical) {
    if (text != canonical) add(std::string(name), "", "its bytes are not the canonical form of its content");
  }

  void check_hash(const std::string& path, const Json& recorded, const fs::path& file) {
    attempt(path, [&] {
      const Json found = sha256_file_hex(file);
      if (recorded != found) add(path, recorded.dump(), found.dump());
    });
  }

  void check_file_hashes() {
    check_hash("protocol_sha256", field("protocol_sha256"), folder_ / run_files::kProtocol);
    check_hash("cases_sha256", field("cases_sha256"), folder_ / run_files::kCases);
    const fs::path scales = folder_ / run_files::kScales;
    if (fs::exists(scales)) check_hash("scales_file_sha256", field("scales_file_sha256"), scales);
    const Json hashes = field("outcomes_sha256");
    if (!hashes.is_object()) return;
    for (const auto& [name, hash] : hashes.items()) {
      const fs::path file = folder_ / run_files::kOutcomes / (name + ".jsonl");
      if (name.find('/') == std::string::npos) check_hash("outcomes_sha256." + name, hash, file);
    }
  }

  Json field(const std::string& name) const {
    return certificate_.is_object() && certificate_.contains(name) ? certificate_.at(name) : Json();
  }

  // Parsed answers and marks follow from the raw text.
  void check_outcomes() {
    const auto& math = run_->protocol.math;
    const AnswerParser parser = math ? math->parser : AnswerParser::kStrict;
    for (size_t arm = 0; arm < run_->arms.size(); ++arm) {
      for (size_t i = 0; i < run_->outcomes[arm].size(); ++i) {
        const Outcome& stored = run_->outcomes[arm][i];
        const std::string at = fmt::format("outcomes/{}.jsonl:{}", arm_name(run_->arms[arm]), i + 1);
        attempt(at, [&] {
          const Outcome judged = rescore_outcome(run_->cases[i], stored, parser);
          if (judged == stored) return;
          std::ranges::move(json_differences(outcome_to_json(stored), outcome_to_json(judged), at),
                            std::back_inserter(found_));
        });
      }
    }
  }

  void take(std::vector<Mismatch> more) { std::ranges::move(more, std::back_inserter(found_)); }

  void check_certificate() {
    const ProbeResult carried = probe_from_json(require_field(certificate_, "probe", origin_), origin_);
    finished_ = finish_run(*run_, judge_probe(carried.layers, carried.thresholds), record_.value_or(AdmissionRecord{}));
    const Json expected =
        make_certificate({finished_->run, finished_->judgement, finished_->probe, finished_->bytes_per_token, folder_});
    for (Mismatch& mismatch : json_differences(certificate_, expected)) {
      const bool known = std::ranges::find(found_, mismatch.path, &Mismatch::path) != found_.end();
      if (!known) found_.push_back(std::move(mismatch));
    }
    attempt(std::string(kPolicy), [&] { check_policy(*finished_); });
    if (record_) attempt(std::string(kReport), [&] { check_report(*finished_); });
  }

  // Whether a file that `gate report` can write again is there.
  bool is_there(std::string_view name) {
    const bool found = fs::exists(folder_ / name);
    if (!found)
      add(std::string(name), "", fmt::format("is missing: asymkv gate report {} writes it", folder_.string()));
    return found;
  }

  void check_policy(const FinishedRun& finished) {
    if (!is_there(kPolicy)) return;
    const Json expected = policy_to_json(finished.policy, finished.run, finished.record, sha256_hex(bytes_));
    const std::string at = fmt::format("{}:", kPolicy);
    for (Mismatch& mismatch : json_differences(read_json_file(folder_ / kPolicy), expected)) {
      add(at + mismatch.path, mismatch.recorded, mismatch.recomputed);
    }
  }

  void check_report(const FinishedRun& finished) {
    if (!is_there(kReport)) return;
    const std::string page = read_text_file(folder_ / kReport);
    if (page == render_report_html(finished.report_inputs())) return;
    // No certificate can name the record, which holds times; the report does.
    if (page.find(sha256_hex(admission_record_bytes(finished.record))) == std::string::npos) {
      add(std::string(kRecord), "another record than report.html names", "one of the two was changed");
    } else if (const std::string& build = finished.run.identity.build; !own_build_.empty() && build != own_build_) {
      report_note_ = fmt::format(
          "{} is not the page that this program writes; another build ({}) made the run, so only its record was held "
          "against the page: asymkv gate report {} writes it anew",
          kReport, build.substr(0, 12), folder_.string());
      return;
    }
    add(std::string(kReport), "another page",
        fmt::format("the page that follows from the other files: asymkv gate report {} writes it", folder_.string()));
  }

  fs::path folder_;
  std::string own_build_;
  std::string report_note_;
  std::string origin_;
  std::string bytes_;
  Json certificate_;
  std::optional<Run> run_;
  std::optional<AdmissionRecord> record_;
  std::optional<FinishedRun> finished_;
  std::vector<Mismatch> found_;
};

}  // namespace

std::vector<Mismatch> json_differences(const Json& recorded, const Json& recomputed, const std::string& path) {
  std::vector<Mismatch> found;
  if (recorded.is_object() && recomputed.is_object()) {
    add_object_differences(recorded, recomputed, path, found);
  } else if (recorded.is_array() && recomputed.is_array() && recorded.size() == recomputed.size()) {
    for (size_t i = 0; i < recorded.size(); ++i) {
      std::ranges::move(json_differences(recorded[i], recomputed[i], fmt::format("{}[{}]", path, i)),
                        std::back_inserter(found));
    }
  } else if (recorded.is_number() && recomputed.is_number()) {
    if (!numbers_agree(recorded, recomputed)) found.push_back({path, recorded.dump(), recomputed.dump()});
  } else if (recorded != recomputed) {
    found.push_back({path, recorded.dump(), recomputed.dump()});
  }
  return found;
}

Verification verify_run_folder(const fs::path& folder, std::string_view own_build) {
  if (fs::exists(folder / run_files::kRun) && !fs::exists(folder / kCertificate)) {
    read_run(folder);  // a shard or an unfinished run says what it is
    throw_bad_input("{} has no {}: resume the run, which writes it", folder.string(), kCertificate);
  }
  return Verifier(folder, own_build).run();
}

FinishedRun read_verified_run(const fs::path& folder) {
  auto [mismatches, finished, note] = verify_run_folder(folder);
  std::erase_if(mismatches, is_derived);
  if (mismatches.empty()) return std::move(finished).value();
  const Mismatch& first = mismatches.front();
  throw_bad_input("{} does not verify ({}: {}): nothing was written; asymkv gate verify {} names {}", folder.string(),
                  first.path, first.recomputed, folder.string(),
                  mismatches.size() == 1 ? "1 mismatch" : fmt::format("{} mismatches", mismatches.size()));
}

bool is_derived(const Mismatch& mismatch) {
  return mismatch.path == kReport || mismatch.path == kPolicy || mismatch.path.starts_with(fmt::format("{}:", kPolicy));
}

Json mismatches_to_json(const std::vector<Mismatch>& mismatches) {
  Json list = Json::array();
  for (const Mismatch& mismatch : mismatches) {
    list.push_back({{"path", mismatch.path}, {"recorded", mismatch.recorded}, {"recomputed", mismatch.recomputed}});
  }
  return {{"ok", mismatches.empty()}, {"mismatches", std::move(list)}};
}

}  // namespace asymkv
