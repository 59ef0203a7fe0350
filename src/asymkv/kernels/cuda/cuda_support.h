#pragma once

#include <string>
#include <string_view>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/instance_table.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

inline constexpr std::string_view kFamilyName = "cuda-sm90a";

// What the family serves in a phase, as an AttentionBackend answers: yes with the name of the kernel, or no with a
// sentence. Needs no device; `built` says whether this build holds the decode instances.
Support family_support(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase);

// The name under which a launched configuration is logged, "cuda-sm90a/decode/bf16_e4m3_d128_vd". Column tiles and the
// fast-pair step are details of one launch and left out.
std::string family_kernel_name(Phase phase, const DecodeConfig& config);

// Whether a launch that overlaps the writer of its pass (DecodeArguments::overlap_previous) reads none of that writer's
// rows too early: one query, which waits for its own page, or stored keys that are all older than the queries. Many
// queries make several tiles, and a later tile would take what the pass stores for an earlier one as old.
bool reads_older_keys_early(const AttendSequence& sequence);

// Why this build on these devices cannot run the family; empty if it can. instances: decode kernels in the build.
std::string family_refusal(const DeviceList& devices, size_t instances);

}  // namespace asymkv::cuda
