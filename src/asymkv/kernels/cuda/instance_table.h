#pragma once

#include <string>
#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kv/format.h"
#include "asymkv/kv/layout.h"

namespace asymkv::cuda {

// One function a file of instances/: decode_KEY_VALUE_dHEADDIM. A new combination is a new file, a line here and a line
// in instance_table.cc.
std::vector<DecodeInstance> decode_bf16_bf16_d64();
std::vector<DecodeInstance> decode_f16_f16_d64();
std::vector<DecodeInstance> decode_bf16_e4m3_d64();
std::vector<DecodeInstance> decode_f16_e4m3_d64();
std::vector<DecodeInstance> decode_e4m3_bf16_d64();
std::vector<DecodeInstance> decode_e4m3_f16_d64();
std::vector<DecodeInstance> decode_e4m3_e4m3_d64();
std::vector<DecodeInstance> decode_i8_e4m3_d64();
std::vector<DecodeInstance> decode_bf16_bf16_d80();
std::vector<DecodeInstance> decode_f16_f16_d80();
std::vector<DecodeInstance> decode_bf16_e4m3_d80();
std::vector<DecodeInstance> decode_f16_e4m3_d80();
std::vector<DecodeInstance> decode_e4m3_bf16_d80();
std::vector<DecodeInstance> decode_e4m3_f16_d80();
std::vector<DecodeInstance> decode_e4m3_e4m3_d80();
std::vector<DecodeInstance> decode_i8_e4m3_d80();
std::vector<DecodeInstance> decode_bf16_bf16_d96();
std::vector<DecodeInstance> decode_f16_f16_d96();
std::vector<DecodeInstance> decode_bf16_e4m3_d96();
std::vector<DecodeInstance> decode_f16_e4m3_d96();
std::vector<DecodeInstance> decode_e4m3_bf16_d96();
std::vector<DecodeInstance> decode_e4m3_f16_d96();
std::vector<DecodeInstance> decode_e4m3_e4m3_d96();
std::vector<DecodeInstance> decode_i8_e4m3_d96();
std::vector<DecodeInstance> decode_bf16_bf16_d128();
std::vector<DecodeInstance> decode_f16_f16_d128();
std::vector<DecodeInstance> decode_bf16_e4m3_d128();
std::vector<DecodeInstance> decode_f16_e4m3_d128();
std::vector<DecodeInstance> decode_e4m3_bf16_d128();
std::vector<DecodeInstance> decode_e4m3_f16_d128();
std::vector<DecodeInstance> decode_e4m3_e4m3_d128();
std::vector<DecodeInstance> decode_i8_e4m3_d128();
std::vector<DecodeInstance> decode_bf16_bf16_d192();
std::vector<DecodeInstance> decode_f16_f16_d192();
std::vector<DecodeInstance> decode_bf16_e4m3_d192();
std::vector<DecodeInstance> decode_f16_e4m3_d192();
std::vector<DecodeInstance> decode_e4m3_bf16_d192();
std::vector<DecodeInstance> decode_e4m3_f16_d192();
std::vector<DecodeInstance> decode_e4m3_e4m3_d192();
std::vector<DecodeInstance> decode_i8_e4m3_d192();
std::vector<DecodeInstance> decode_bf16_bf16_d256();
std::vector<DecodeInstance> decode_f16_f16_d256();
std::vector<DecodeInstance> decode_bf16_e4m3_d256();
std::vector<DecodeInstance> decode_f16_e4m3_d256();
std::vector<DecodeInstance> decode_e4m3_bf16_d256();
std::vector<DecodeInstance> decode_e4m3_f16_d256();
std::vector<DecodeInstance> decode_e4m3_e4m3_d256();
std::vector<DecodeInstance> decode_i8_e4m3_d256();

// Every decode kernel of this build, in the order of the files above.
const std::vector<DecodeInstance>& decode_instance_table();

// The configuration that serves a format at a geometry, or a sentence that says why none does. Needs no device: it says
// what the family serves; `built` below says what this build holds.
struct DecodeChoice {
  bool ok = false;
  DecodeConfig config;
  std::string reason;
};
// num_queries: most query tokens of a sequence in one step. fast_bias: whether the layers' removed vectors have fast
// pairs (KeyBias::shape.fast_steps > 0).
DecodeChoice choose_decode(const KvGeometry& geometry, const KvFormat& format, int64_t group, int64_t num_queries = 1,
                           bool fast_bias = false);

// The instance of a configuration. Throws Error{kUnsupported} if this build was made without it.
const DecodeInstance& require_instance(const DecodeConfig& config);

}  // namespace asymkv::cuda
