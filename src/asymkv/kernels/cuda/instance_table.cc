#include "asymkv/kernels/cuda/instance_table.h"

#include <algorithm>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

std::vector<DecodeInstance> collect() {
  std::vector<DecodeInstance> all;
  [[maybe_unused]] auto append = [&](const std::vector<DecodeInstance>& some) {
    all.insert(all.end(), some.begin(), some.end());
  };
#if ASYMKV_CUDA_BUILT
  append(decode_bf16_bf16_d128());
  append(decode_bf16_e4m3_d128());
  append(decode_e4m3_bf16_d128());
  append(decode_e4m3_e4m3_d128());
  append(decode_i8_e4m3_d128());
#if !ASYMKV_CUDA_REDUCED
  append(decode_f16_f16_d128());
  append(decode_f16_e4m3_d128());
  append(decode_e4m3_f16_d128());
  append(decode_bf16_bf16_d64());
  append(decode_bf16_e4m3_d64());
  append(decode_e4m3_bf16_d64());
  append(decode_e4m3_e4m3_d64());
  append(decode_i8_e4m3_d64());
  append(decode_f16_f16_d64());
  append(decode_f16_e4m3_d64());
  append(decode_e4m3_f16_d64());
  append(decode_bf16_bf16_d80());
  append(decode_bf16_e4m3_d80());
  append(decode_e4m3_bf16_d80());
  append(decode_e4m3_e4m3_d80());
  append(decode_i8_e4m3_d80());
  append(decode_f16_f16_d80());
  append(decode_f16_e4m3_d80());
  append(decode_e4m3_f16_d80());
  append(decode_bf16_bf16_d96());
  append(decode_bf16_e4m3_d96());
  append(decode_e4m3_bf16_d96());
  append(decode_e4m3_e4m3_d96());
  append(decode_i8_e4m3_d96());
  append(decode_f16_f16_d96());
  append(decode_f16_e4m3_d96());
  append(decode_e4m3_f16_d96());
  append(decode_bf16_bf16_d192());
  append(decode_bf16_e4m3_d192());
  append(decode_e4m3_bf16_d192());
  append(decode_e4m3_e4m3_d192());
  append(decode_i8_e4m3_d192());
  append(decode_f16_f16_d192());
  append(decode_f16_e4m3_d192());
  append(decode_e4m3_f16_d192());
  append(decode_bf16_bf16_d256());
  append(decode_bf16_e4m3_d256());
  append(decode_e4m3_bf16_d256());
  append(decode_e4m3_e4m3_d256());
  append(decode_i8_e4m3_d256());
  append(decode_f16_f16_d256());
  append(decode_f16_e4m3_d256());
  append(decode_e4m3_f16_d256());
#endif
#endif
  return all;
}

}  // namespace

const std::vector<DecodeInstance>& decode_instance_table() {
  static const std::vector<DecodeInstance> table = collect();
  return table;
}

const DecodeInstance& require_instance(const DecodeConfig& config) {
  const auto& table = decode_instance_table();
  const auto found = std::ranges::find(table, config, &DecodeInstance::config);
  if (found == table.end()) {
    throw_unsupported(
        "this build holds {} decode kernels, {} not among them: build with the preset \"cuda\" and "
        "ASYMKV_CUDA_INSTANCES=all",
        table.size(), config.name());
  }
  return *found;
}

}  // namespace asymkv::cuda
