#pragma once

#include <memory>
#include <string_view>

#include "asymkv/ops/attention.h"

namespace asymkv {

// "ref": double precision, written from the definition in ops/attention.h, one thread. The oracle of every other
// family.
std::unique_ptr<AttentionBackend> make_ref_attention();

// The Highway family in FP32: the best target of this machine, or the one asked for by name ("cpu-avx512", "cpu-avx2",
// "cpu-sse4", "cpu-sse2", "cpu-neon", "cpu-scalar"). Throws Error{kUnsupported} for a name this build or machine lacks.
// Results depend neither on the number of threads nor on what else is in the batch.
std::unique_ptr<AttentionBackend> make_cpu_attention(std::string_view name = {});

}  // namespace asymkv
