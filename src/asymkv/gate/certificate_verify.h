#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "asymkv/base/json.h"

namespace asymkv {

// One thing in a run folder that does not follow from the rest of it.
struct Mismatch {
  // JSON path in certificate.json ("arms.SD.vs.N.retrieval.1024.lost"), or the file and the place in it
  // ("outcomes/SD.jsonl:17.correct", "policy.json:tier").
  std::string path;
  std::string recorded;    // what the folder says, as JSON; empty if it says nothing there
  std::string recomputed;  // what follows from protocol, cases and outcomes; or a sentence saying what is wrong
};

// Recomputes every count, bound, verdict and hash of certificate.json from protocol.json, cases.jsonl and the outcome
// files alone, and judges every outcome's text again. Taken from the certificate itself: the probe's per-layer numbers
// and the bytes per token, from which the probe's verdict, the equal bytes of A and R, and (where there is one)
// policy.json are recomputed. Bounds agree within 1e-9, relative: mathematical libraries differ in the last digits.
// Empty if all is well. Throws Error{kBadInput} only if the folder has no readable certificate.json.
std::vector<Mismatch> verify_run_folder(const std::filesystem::path& folder);

// {"ok": ..., "mismatches": [{"path", "recorded", "recomputed"}]}
Json mismatches_to_json(const std::vector<Mismatch>& mismatches);

// Every path in which two JSON values differ; numbers are compared as verify_run_folder says.
std::vector<Mismatch> json_differences(const Json& recorded, const Json& recomputed, const std::string& path = {});

}  // namespace asymkv
