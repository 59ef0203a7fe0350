#pragma once

#include <filesystem>
#include <vector>

#include "asymkv/gate/admission_record.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/run_folder.h"

namespace asymkv {

// record.json against the run: one record an arm, with the formats, bytes, model, build, protocol and scales that
// run.json names, every launched kernel of the stored formats, and no fewer decode launches than the answers took.
// Paths are "record.json:arms.SD.key.allocated.format".
std::vector<Mismatch> check_record(const AdmissionRecord& record, const Run& run);

// scales.json against the hash in run.json: there exactly where an arm has fixed scales, and of this model.
std::vector<Mismatch> check_scales(const std::filesystem::path& folder, const Run& run);

}  // namespace asymkv
