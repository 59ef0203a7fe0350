#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"

namespace asymkv {

// What happened to one side, keys or values: four facts from four places, never merged and never copied from one to
// another. An absent one is written "unset" (requested) or "unknown" (the others).

// The pool's own layout descriptor.
struct AllocatedSide {
  std::string format;         // exact id, as KeyFormat::id or ValueFormat::id: "bf16", "e4m3-prebias", ...
  std::string scale;          // "none", "fixed", "dynamic"; another engine's also "block": inside the payload
  int64_t page_bytes = 0;     // payload of one page of one layer
  int64_t scale_bytes = 0;    // scales of one page of one layer
  int64_t payload_bytes = 0;  // payload of the whole pool, all layers
  bool operator==(const AllocatedSide&) const = default;
};

// A kernel that ran, as this side saw it.
struct LaunchedKernel {
  std::string family;    // "cpu/avx512", "ref", ...
  std::string instance;  // launch_instance
  std::string format;    // exact id that the instance reads or writes on this side
  std::string build;     // hash of the kernel build
  int64_t count = 0;     // launches, > 0
  bool operator==(const LaunchedKernel&) const = default;
};

// "decode:KERNEL", or "decode:KERNEL queries=e4m3" where the queries had been rounded to `query` (empty: native).
std::string launch_instance(std::string_view phase, std::string_view kernel, std::string_view query);
// What the queries of an instance had been rounded to; empty: native.
std::string_view launch_query(std::string_view instance);
// Whether an instance is of that phase with such queries.
bool is_launch_of(std::string_view instance, std::string_view phase, std::string_view query);

struct SideFacts {
  std::optional<std::string> requested;  // the user's words after parsing
  std::optional<std::string> resolved;   // exact id after model, checkpoint scales, policy and backend selection
  std::optional<AllocatedSide> allocated;
  std::vector<LaunchedKernel> launched;  // empty: unknown
  bool operator==(const SideFacts&) const = default;

  // What holds: the allocated format, or "unknown".
  std::string effective() const;
  // Whether kernels ran and every one of them worked on the allocated format.
  bool attested() const;
};

inline constexpr int64_t kRecordVersion = 2;      // of the records that this program makes
std::string record_schema_name(int64_t version);  // "asymkv.record/2"

// Every hash is a lower-case SHA-256; an empty text means that there is none, and is written as null.
struct Record {
  int64_t version = kRecordVersion;  // of the schema; a record is written in the version that it was read in
  std::string engine = "asymkv";
  std::string engine_version;
  std::string imported_from;  // "vllm-log", ...: made from another tool's output, has `requested` at most
  SideFacts key;
  SideFacts value;

  struct Model {
    std::string id, revision;
    std::string weights_sha256, tokenizer_sha256, config_sha256;
    std::string native_dtype;
    bool operator==(const Model&) const = default;
  } model;

  struct Scales {
    std::string source = "none";  // "none", "checkpoint", "calibrated", "dynamic", "unit", "unknown"
    std::string sha256;           // of the calibrated file
    int64_t epoch = 0;
    bool operator==(const Scales&) const = default;
  } scales;

  struct Transform {
    std::string kind = "none";  // "none", "key_bias_removed", "unknown"
    std::string sha256;         // of the bias used
    bool operator==(const Transform&) const = default;
  } transform;

  struct Layout {
    std::string id;         // "plain-1"
    int64_t page_size = 0;  // slots
    bool operator==(const Layout&) const = default;
  } layout;

  std::string worker;  // attention and model kernels, "cpu-avx2+cpu-avx2-a32"; version 1 has it in device.name

  struct Device {
    std::string kind;  // "cpu", "cuda"
    std::string name;  // of the machine: "NVIDIA H200", the processor's model name
    std::string driver, toolkit, compute_capability;
    bool operator==(const Device&) const = default;
  } device;

  struct Build {
    std::string hash, compiler;
    bool operator==(const Build&) const = default;
  } build;

  struct Launch {
    std::string split;           // rule that cuts a context into splits
    std::string mode = "eager";  // "eager", "graph", "unknown"
    int64_t batch = 0;           // largest batch; 0: unknown
    int64_t threads = 0;         // of the host kernels; 0: unknown, or none; not in version 1
    bool operator==(const Launch&) const = default;
  } launch;

  std::string protocol_sha256;  // where a gate ran
  std::string argv_sha256;      // argv_fingerprint
  std::string started, ended;   // utc_timestamp

  bool operator==(const Record&) const = default;
};

// Canonical form of schemas/record.schema.json (version 1: record-1.schema.json): sorted keys, `effective` and
// `attested` derived from the facts. Throws Error{kInternal} for a record that record_from_json would refuse.
Json record_to_json(const Record& record);
// Reads every version ever written. Strict: a missing, unknown or mistyped field, a word outside its list, a hash that
// is none, an `effective` or `attested` that the facts do not bear out, and an imported record that claims more than
// `requested` are Error{kBadInput} naming `origin` and the field; another schema name is Error{kUnsupported}.
Record record_from_json(const Json& json, std::string_view origin);
Record read_record(const std::filesystem::path& path);

// One record of work that several processes did one after another on equal terms, as a resumed run does: launches add
// up, of payloads and batches the larger one counts, `started` and the arguments are the earlier one's, `ended` is the
// later one's; machines of two names are both named, and two numbers of threads are none. Throws Error{kBadInput}
// naming `origin` and the first fact in which the two differ though they must not.
Record merge_records(const Record& earlier, const Record& later, std::string_view origin);

// SHA-256 over the arguments, each as its length (8 bytes, little endian) and its bytes. The value of an option whose
// name speaks of a secret (key, token, password, secret, authorization, credential) is left out, in both spellings
// ("--api-key X", "--api-key=X"): equal commands agree, and nobody can test guesses of a secret against a record.
std::string argv_fingerprint(std::span<const std::string> argv);

// The text, or null where there is none.
Json text_or_null(const std::string& text);

// "2026-11-29T16:20:05Z".
std::string utc_timestamp(std::chrono::system_clock::time_point time);

}  // namespace asymkv
