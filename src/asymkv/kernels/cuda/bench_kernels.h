#pragma once

#include <cstdint>

#include "asymkv/kernels/cuda/decode_launch.h"

// Device helpers of the measuring program: random contents and the memory bandwidth of the device.
namespace asymkv::cuda {

// Fills a tiled-1 block plane with normal numbers in the configuration's types (keys of 8 bits: scale 1/16 for E4M3,
// 1/40 for INT8; values: 1/16), and a scale plane with scales that fit.
void fill_blocks(const DecodeConfig& config, std::byte* blocks, int64_t num_blocks, uint64_t seed, StreamHandle stream);
void fill_scales(const DecodeConfig& config, float* scales, int64_t num_blocks, uint64_t seed, StreamHandle stream);
void fill_normal_16bit(bool bf16, uint16_t* to, int64_t count, uint64_t seed, float sigma, StreamHandle stream);

// Reads (copies) `bytes` once with 16-byte streaming accesses; `sink` keeps the loads alive.
void launch_read(const std::byte* from, int64_t bytes, int ctas, int threads, uint32_t* sink, StreamHandle stream);
void launch_copy(const std::byte* from, std::byte* to, int64_t bytes, int ctas, StreamHandle stream);

}  // namespace asymkv::cuda
