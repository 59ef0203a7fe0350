// Any bytes as a safetensors file: the reader gives a table whose tensors lie inside the file, or throws Error. Where
// the table has the three tensors "m.qweight", "m.qzeros" and "m.scales", they are read as an AWQ matrix.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/model/awq.h"
#include "asymkv/model/safetensors.h"
#include "asymkv/tensor/ggml_quants.h"

namespace {

const asymkv::SafetensorsEntry* find(const asymkv::SafetensorsHeader& header, const std::string& name) {
  const auto it = std::ranges::find(header.tensors, name, &asymkv::SafetensorsEntry::name);
  return it == header.tensors.end() ? nullptr : &*it;
}

void read_awq(const asymkv::SafetensorsHeader& header) {
  const asymkv::SafetensorsEntry* qweight = find(header, "m.qweight");
  const asymkv::SafetensorsEntry* qzeros = find(header, "m.qzeros");
  const asymkv::SafetensorsEntry* scales = find(header, "m.scales");
  if (qweight == nullptr || qzeros == nullptr || scales == nullptr) return;
  const asymkv::AwqMatrix matrix("m", *qweight, *qzeros, *scales, "fuzz");
  const asymkv::GgmlTypeTraits& q5_0 = asymkv::ggml_type_traits(asymkv::GgmlType::kQ5_0);
  std::vector<std::byte> blocks(static_cast<size_t>(matrix.in() / q5_0.block_elems * q5_0.block_bytes));
  for (int64_t row = 0; row < matrix.out(); ++row) matrix.copy_row_as_q5_0(row, blocks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const asymkv::SafetensorsHeader header = asymkv::parse_safetensors(file, "fuzz");
    uint64_t sum = 0;
    for (const asymkv::SafetensorsEntry& tensor : header.tensors) {
      for (const std::byte byte : tensor.bytes) sum += std::to_integer<uint64_t>(byte);
      int64_t elems = 1;
      for (const int64_t dim : tensor.shape) elems *= dim;
      if (elems < 0 || static_cast<uint64_t>(elems) > size) std::abort();
    }
    volatile uint64_t sink = sum;  // keeps the reads, so that AddressSanitizer sees each of them
    (void)sink;
    read_awq(header);
  } catch (const asymkv::Error& e) {
    if (e.code() == asymkv::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
