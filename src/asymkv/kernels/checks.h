#pragma once

#include "asymkv/ops/attention.h"

namespace asymkv {

// Params that contradict each other are our own bug: these throw Error{kInternal} with the values. Every family calls
// them first, so that no kernel reads or writes outside its planes. memory: where the family's caches lie.
void check_write_params(const WriteKvParams& params, KvMemory memory = KvMemory::kHost);
void check_attend_params(const AttendParams& params, KvMemory memory = KvMemory::kHost);
// Only what may differ from a call of the same pass that was checked whole.
void check_write_layer(const WriteKvParams& params, KvMemory memory);
void check_attend_layer(const AttendParams& params, KvMemory memory);

// Throws Error{kUnsupported} with the reason of backend.supports() for a target or a sequence it does not serve.
void require_write_support(const AttentionBackend& backend, const WriteKvParams& params);
void require_attend_support(const AttentionBackend& backend, const AttendParams& params);

// What every family refuses: a group outside 1 to 16, or not positive sizes. An empty string: nothing to refuse.
std::string common_refusal(const KvGeometry& geometry, int64_t group);

// The dtype that fresh keys (values) of one call are rounded to: that of its targets, else native.
DType fresh_key_dtype_of(const WriteKvParams& params);
DType fresh_value_dtype_of(const WriteKvParams& params);

}  // namespace asymkv
