#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/report.h"

namespace asymkv {

// One thing in a run folder that does not follow from the rest of it.
struct Mismatch {
  // JSON path in certificate.json ("arms.SD.vs.N.retrieval.1024.lost"), or the file and the place in it
  // ("outcomes/SD.jsonl:17.correct", "policy.json:tier").
  std::string path;
  std::string recorded;    // what the folder says, as JSON; empty if it says nothing there
  std::string recomputed;  // what follows from protocol, cases and outcomes; or a sentence saying what is wrong
};

struct Verification {
  std::vector<Mismatch> mismatches;     // none if all is well
  std::optional<FinishedRun> finished;  // judged again on the way; absent where the files do not allow that
  // Why report.html was not compared byte by byte; empty if it was.
  std::string report_note;
};

// Checks every file of a finished folder. Every count, bound, verdict and hash of certificate.json is recomputed from
// protocol.json, cases.jsonl, run.json and the outcome files, the bytes per token from run.json's cache shape, and
// every outcome's text is judged again; scales.json and record.json are held against run.json and the outcomes
// (evidence_check.h); policy.json and report.html must follow from the rest. Taken from the certificate itself: the
// probe's numbers per layer, from which its verdict is recomputed. Bounds agree within 1e-9, relative: mathematical
// libraries differ in the last digits. A missing file is a mismatch that says what to do.
// `own_build` is this program's build id: the page of a run that another build made only has to name the record, since
// a page's words and styles are the program's. Empty: every page is compared. Throws Error{kBadInput} only if the
// folder has no readable certificate.json.
Verification verify_run_folder(const std::filesystem::path& folder, std::string_view own_build = {});

// For what speaks of a finished run: its folder read, judged again, and free of mismatches but derived ones. Throws
// Error{kBadInput} naming the first mismatch and the command that names them all.
FinishedRun read_verified_run(const std::filesystem::path& folder);

// Whether the mismatch lies in policy.json or report.html, which follow from the rest and can be written again.
bool is_derived(const Mismatch& mismatch);

// {"ok": ..., "mismatches": [{"path", "recorded", "recomputed"}]}
Json mismatches_to_json(const std::vector<Mismatch>& mismatches);

// Every path in which two JSON values differ; numbers are compared as verify_run_folder says.
std::vector<Mismatch> json_differences(const Json& recorded, const Json& recomputed, const std::string& path = {});

}  // namespace asymkv
