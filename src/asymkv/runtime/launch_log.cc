#include "asymkv/runtime/launch_log.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace asymkv {

int64_t& LoggedAttention::counter(const KvLayout& layout, const Call& call) const {
  const KvFormat& format = layout.format();
  const auto id =
      std::make_tuple(format.key.id(), format.value.id(), format.scale(), layout.geometry().k_head_dim, call);
  int64_t*& known = known_[id];
  if (known == nullptr) {
    const Support support = inner_->supports(layout.geometry(), format, call.group, call.phase);
    known = &launches_[{
        std::string(name()), format.key.id(), format.value.id(), std::string(scale_kind_name(format.scale())),
        call.query_dtype ? std::string(dtype_name(*call.query_dtype)) : "", std::string(phase_name(call.phase)),
        support.kernel, call.batch, call.graph ? "graph" : "eager"}];
  }
  return *known;
}

void LoggedAttention::write_kv(const WriteKvParams& params) const {
  inner_->write_kv(params);
  if (!params.recorded) count(params, 1, false);
}

void LoggedAttention::attend(const AttendParams& params) const {
  inner_->attend(params);
  if (!params.recorded) count(params, 1, false);
}

void LoggedAttention::replayed(const WriteKvParams& params, int64_t layers) const {
  inner_->replayed(params, layers);
  count(params, layers, true);
}

void LoggedAttention::replayed(const AttendParams& params, int64_t layers) const {
  inner_->replayed(params, layers);
  count(params, layers, true);
}

void LoggedAttention::count(const WriteKvParams& params, int64_t layers, bool graph) const {
  Call write;
  write.graph = graph;
  for (const WriteTarget& target : params.targets) counter(*target.cache.layout, write) += layers;
}

void LoggedAttention::count(const AttendParams& params, int64_t layers, bool graph) const {
  std::vector<std::pair<const KvLayout*, int64_t>> batches;  // sequences of each cache in this call
  const auto batch_of = [&batches](const KvLayout* layout) -> int64_t& {
    const auto known = std::ranges::find(batches, layout, &std::pair<const KvLayout*, int64_t>::first);
    return known != batches.end() ? known->second : batches.emplace_back(layout, 0).second;
  };
  for (const AttendSequence& sequence : params.sequences) {
    if (sequence.stored_len != 0) ++batch_of(sequence.cache.layout);
  }
  // Sequences of one cache mostly stand together: its counter is looked up once for all of them.
  int64_t* entry = nullptr;
  const AttendSequence* counted = nullptr;
  const auto phase_of = [](const AttendSequence& s) {
    return s.num_queries == 1 && s.num_fresh == 0 ? Phase::kDecode : Phase::kMixed;
  };
  for (const AttendSequence& sequence : params.sequences) {
    if (sequence.stored_len == 0) continue;
    const bool same = counted != nullptr && counted->cache.layout == sequence.cache.layout &&
                      counted->query_dtype == sequence.query_dtype && phase_of(*counted) == phase_of(sequence);
    if (!same) {
      entry = &counter(*sequence.cache.layout, {params.num_q_heads / params.num_kv_heads, phase_of(sequence),
                                                sequence.query_dtype, batch_of(sequence.cache.layout), graph});
    }
    *entry += layers;
    counted = &sequence;
  }
}

}  // namespace asymkv
