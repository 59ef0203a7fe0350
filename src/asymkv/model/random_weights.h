#pragma once

#include <cstdint>
#include <memory>

#include "asymkv/model/config.h"
#include "asymkv/model/weights.h"

namespace asymkv {

// Every tensor that a model of this configuration needs, drawn when it is read: element i of a tensor depends on the
// seed, the tensor's name and i alone, so that equal seeds are equal weights everywhere. For measuring speed at
// geometries whose weights are not at hand; what such a model writes means nothing.
// - Matrices and biases: near normal numbers (sums of eight uniform bytes), a matrix's with standard deviation
//   1 / sqrt(row length), so that activations keep their size from layer to layer; stored in the native type.
// - Key biases: as large, pair by pair, as those of Qwen2.5-1.5B (kv/measured_bias.h), with drawn angles.
// - Norms: ones.
// - Where the configuration names AWQ, the projections of the layers are matrices of 4-bit codes (awq.h), each with one
//   scale and zero points of 7 or 8.
// Throws Error{kUnsupported} for rows that are no whole AWQ groups.
std::unique_ptr<WeightSource> make_random_weights(const ModelConfig& config, uint64_t seed);

}  // namespace asymkv
