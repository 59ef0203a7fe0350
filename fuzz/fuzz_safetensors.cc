// Any bytes as a safetensors file: the reader gives a table whose tensors lie inside the file, or throws Error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "asymkv/base/error.h"
#include "asymkv/model/safetensors.h"

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
  } catch (const asymkv::Error& e) {
    if (e.code() == asymkv::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
