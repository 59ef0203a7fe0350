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
// Throws Error{kUnsupported} for a quantised configuration.
std::unique_ptr<WeightSource> make_random_weights(const ModelConfig& config, uint64_t seed);

}  // namespace asymkv
