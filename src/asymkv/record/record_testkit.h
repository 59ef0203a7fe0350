#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "asymkv/base/error_testkit.h"
#include "asymkv/record/record.h"

namespace asymkv::test {

// A file of src/asymkv/record/testdata.
inline std::filesystem::path test_file(const std::string& name) {
  return std::filesystem::path(std::getenv("ASYMKV_SOURCE_DIR")) / "src" / "asymkv" / "record" / "testdata" / name;
}

// K16/V8 on a GPU, everything known and attested.
inline Record full_record() {
  Record r;
  r.engine_version = "0.1.0";
  r.key.requested = "k16v8";
  r.key.resolved = "bf16";
  r.key.allocated = AllocatedSide{"bf16", "none", 4096, 0, 1 << 20};
  r.key.launched = {{"cuda-sm90a", "attend<bf16,e4m3,64>", "bf16", "b1", 12}};
  r.value.requested = "k16v8";
  r.value.resolved = "e4m3";
  r.value.allocated = AllocatedSide{"e4m3", "dynamic", 2048, 128, 1 << 19};
  r.value.launched = {{"cuda-sm90a", "attend<bf16,e4m3,64>", "e4m3", "b1", 12}};
  r.model = {"probe-robust", "r1", std::string(64, 'a'), std::string(64, 'b'), std::string(64, 'c'), "bf16"};
  r.scales = {"dynamic", "", 3};
  r.transform = {"key_bias_removed", std::string(64, 'd')};
  r.layout = {"plain-1", 16};
  r.worker = "cuda-sm90a+cuda-cublaslt-a32";
  r.device = {"cuda", "H200", "580.1", "13.0", "9.0"};
  r.build = {"b1", "gcc 12.2"};
  r.launch = {"by-1024", "graph", 12, 16};
  r.protocol_sha256 = std::string(64, 'e');
  r.argv_sha256 = std::string(64, 'f');
  r.started = "2026-11-29T16:20:05Z";
  r.ended = "2026-11-29T16:21:05Z";
  return r;
}

}  // namespace asymkv::test
