#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "asymkv/ops/attention.h"

namespace asymkv {

// Which kernel touched a cache of which formats, as seen at the call: the `launched` facts of a record.
struct Launch {
  std::string family;  // AttentionBackend::name()
  std::string key;     // key format id of the cache the call read or wrote
  std::string value;
  std::string scale;   // "none", "fixed", "dynamic"
  std::string query;   // what the call's queries were rounded to, "e4m3"; empty: native, or none (a write)
  std::string phase;   // "write", "decode", "mixed"
  std::string kernel;  // the family's own name for what served it
  int64_t batch = 0;   // sequences of that cache in the call; 0: a write
  std::string mode;    // "eager", or "graph" for a replay
  auto operator<=>(const Launch&) const = default;
};

// Passes every call on to another family and counts what ran. Reads of fresh keys alone are no launch: they touch no
// cache; what is recorded counts when it is replayed. Not thread-safe, as the backends' callers are not.
class LoggedAttention final : public AttentionBackend {
 public:
  explicit LoggedAttention(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override {
    return inner_->supports(geometry, format, group, phase);
  }
  KvMemory cache_memory() const override { return inner_->cache_memory(); }
  void finish() const override { inner_->finish(); }
  void keep_pass(uint64_t pass) const override { inner_->keep_pass(pass); }
  void forget_pass(uint64_t pass) const override { inner_->forget_pass(pass); }
  bool replan(const WriteKvParams& params) const override { return inner_->replan(params); }
  bool replan(const AttendParams& params) const override { return inner_->replan(params); }
  void replayed(const WriteKvParams& params, int64_t layers) const override;
  void replayed(const AttendParams& params, int64_t layers) const override;
  void write_kv(const WriteKvParams& params) const override;
  void attend(const AttendParams& params) const override;
  const std::map<Launch, int64_t>& launches() const { return launches_; }

 private:
  // What a launch is known by before its kernel has a name.
  struct Call {
    int64_t group = 1;
    Phase phase = Phase::kWrite;
    std::optional<DType> query_dtype;
    int64_t batch = 0;
    bool graph = false;
    auto operator<=>(const Call&) const = default;
  };
  void count(const WriteKvParams& params, int64_t layers, bool graph) const;
  void count(const AttendParams& params, int64_t layers, bool graph) const;
  int64_t& counter(const KvLayout& layout, const Call& call) const;
  std::unique_ptr<AttentionBackend> inner_;
  mutable std::map<Launch, int64_t> launches_;
  // Kernel names are asked for once: (key id, value id, scale, head dim, call) -> entry of launches_.
  using KnownKey = std::tuple<std::string, std::string, ScaleKind, int64_t, Call>;
  mutable std::map<KnownKey, int64_t*> known_;
};

}  // namespace asymkv
