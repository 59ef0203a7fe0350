#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "asymkv/gate/judgement.h"
#include "asymkv/gate/policy.h"
#include "asymkv/gate/probe.h"

namespace asymkv {

// {"preservation": {...}, "aggregate": {...}, "retrieval": {LENGTH: {...}}, "loss": {LENGTH: {...}}}: one arm against
// its control, with every count, bound, limit and verdict.
Json arm_judgement_to_json(const ArmJudgement& judgement);

// Everything needed to recompute each verdict from the outcome files: protocol and its hash, identity, per arm the
// exact format, bytes and judgement against N, the noise floor, and the SHA-256 of cases.jsonl, of scales.json (null
// where there is none) and of each outcome file. Holds no time and no path: equal runs give equal bytes.
struct CertificateInputs {
  const Run& run;
  const Judgement& judgement;
  const ProbeResult& probe;
  const ArmBytes& bytes_per_token;
  std::filesystem::path folder;  // of the run, to hash its files
};
// Throws Error{kInternal} if an arm lacks its bytes or if A and R of one scale policy differ in them.
Json make_certificate(const CertificateInputs& inputs);

// The bytes of certificate.json: canonical JSON and a newline.
std::string certificate_bytes(const Json& certificate);

// The terminal table: one row an arm with format, bytes, losses, bounds and verdicts, the noise floor, and one sentence
// on the policy. Plain text, ends with a newline.
std::string render_table(const Run& run, const Judgement& judgement, const ArmBytes& bytes,
                         const PolicyDecision& policy);

}  // namespace asymkv
