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
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/score.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

constexpr double kRelativeTolerance = 1e-9;
constexpr std::string_view kCertificate = "certificate.json";
constexpr std::string_view kPolicy = "policy.json";

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
  explicit Verifier(const fs::path& folder)
      : folder_(folder),
        origin_((folder / kCertificate).string()),
        bytes_(read_text_file(folder / kCertificate)),
        certificate_(parse_json(bytes_, origin_)) {}

  std::vector<Mismatch> run() {
    if (bytes_ != certificate_bytes(certificate_)) {
      add(std::string(kCertificate), "", "its bytes are not the canonical form of its content");
    }
    check_file_hashes();
    // The run's own checks: progress.jsonl knows each unit's bytes, run.json the protocol and cases.
    attempt("run", [this] { run_ = read_run(folder_); });
    if (!run_) attempt("outcomes", [this] { run_ = read_run_without_progress(); });
    if (!run_) return std::move(found_);
    check_outcomes();
    std::optional<CertificateCarried> carried;
    attempt("certificate", [&] { carried = carried_from_certificate(certificate_, origin_); });
    if (!carried) return std::move(found_);
    level_twins(carried->bytes_per_token);
    attempt("certificate", [&] { check_certificate(*carried); });
    return std::move(found_);
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

  void check_hash(const std::string& path, const Json& recorded, const fs::path& file) {
    attempt(path, [&] {
      const Json found = sha256_file_hex(file);
      if (recorded != found) add(path, recorded.dump(), found.dump());
    });
  }

  void check_file_hashes() {
    check_hash("protocol_sha256", field("protocol_sha256"), folder_ / run_files::kProtocol);
    check_hash("cases_sha256", field("cases_sha256"), folder_ / run_files::kCases);
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

  // The evidence alone, so that a changed outcome still gets its own path.
  Run read_run_without_progress() const {
    Run run;
    const fs::path protocol = folder_ / run_files::kProtocol;
    run.protocol = protocol_from_json(read_json_file(protocol), protocol.string());
    run.protocol_sha256 = sha256_file_hex(protocol);
    const fs::path header_path = folder_ / run_files::kRun;
    const auto header = run_files::header_from_json(read_json_file(header_path), header_path.string());
    run.identity = header.identity;
    run.arms = header.arms;
    run.cases = read_cases(folder_ / run_files::kCases);
    for (const ArmId arm : run.arms) {
      const fs::path path = run_files::outcomes_path(folder_, arm);
      run.outcomes.push_back(read_outcomes(path, arm));
      const std::vector<Outcome>& outcomes = run.outcomes.back();
      if (outcomes.size() != run.cases.size()) {
        throw_bad_input("{} answers {} of {} cases", path.string(), outcomes.size(), run.cases.size());
      }
      for (size_t i = 0; i < outcomes.size(); ++i) {
        if (outcomes[i].case_id == run.cases[i].id && outcomes[i].panel == run.cases[i].panel) continue;
        throw_bad_input("{}:{}: answers {}, but case {} is due there", path.string(), i + 1, outcomes[i].case_id,
                        run.cases[i].id);
      }
    }
    return run;
  }

  // Parsed answers and marks follow from the raw text.
  void check_outcomes() {
    const auto& math = run_->protocol.math;
    const AnswerParser parser = math ? math->parser : AnswerParser::kStrict;
    for (size_t arm = 0; arm < run_->arms.size(); ++arm) {
      for (size_t i = 0; i < run_->cases.size(); ++i) {
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

  // A and R of one scale policy hold the same bytes. Levelled, so that the rest can be recomputed.
  void level_twins(ArmBytes& bytes) {
    for (const auto& [arm, recorded] : bytes) {
      const auto twin = equal_bytes_arm(arm);
      if (!twin || arm > *twin || !bytes.contains(*twin) || bytes.at(*twin) == recorded) continue;
      for (const ArmId side : {arm, *twin}) {
        const ArmId other = side == arm ? *twin : arm;
        add(fmt::format("arms.{}.bytes_per_token", arm_name(side)), std::to_string(bytes.at(side)),
            fmt::format("{} stores {}, and the two must be equal", arm_name(other), bytes.at(other)));
      }
      bytes.at(*twin) = recorded;
    }
  }

  void check_certificate(const CertificateCarried& carried) {
    const Judgement judgement = judge_run(*run_);
    const ProbeResult probe = judge_probe(carried.probe.layers, carried.probe.thresholds);
    const ArmBytes& bytes = carried.bytes_per_token;
    const Json expected = make_certificate({*run_, judgement, probe, bytes, folder_});
    for (Mismatch& mismatch : json_differences(certificate_, expected)) {
      const bool known = std::ranges::find(found_, mismatch.path, &Mismatch::path) != found_.end();
      if (!known) found_.push_back(std::move(mismatch));
    }
    if (fs::exists(folder_ / kPolicy)) check_policy(judgement, probe, bytes);
  }

  void check_policy(const Judgement& judgement, const ProbeResult& probe, const ArmBytes& bytes) {
    attempt(std::string(kPolicy), [&] {
      const Json recorded = read_json_file(folder_ / kPolicy);
      const PolicyMode mode = parse_policy_mode(require_string(recorded, "mode", kPolicy));
      const PolicyDecision decision = choose_policy(judgement, probe, run_->protocol, bytes, mode);
      const Json expected = policy_to_json(decision, *run_, sha256_hex(bytes_));
      for (Mismatch& mismatch : json_differences(recorded, expected)) {
        add(fmt::format("{}:{}", kPolicy, mismatch.path), mismatch.recorded, mismatch.recomputed);
      }
    });
  }

  fs::path folder_;
  std::string origin_;
  std::string bytes_;
  Json certificate_;
  std::optional<Run> run_;
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

std::vector<Mismatch> verify_run_folder(const fs::path& folder) {
  return Verifier(folder).run();
}

Json mismatches_to_json(const std::vector<Mismatch>& mismatches) {
  Json list = Json::array();
  for (const Mismatch& mismatch : mismatches) {
    list.push_back({{"path", mismatch.path}, {"recorded", mismatch.recorded}, {"recomputed", mismatch.recomputed}});
  }
  return {{"ok", mismatches.empty()}, {"mismatches", std::move(list)}};
}

}  // namespace asymkv
