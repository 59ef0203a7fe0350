#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace asymkv {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as stored: "BF16", "F16", "F32", "I64", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // little-endian, row-major; may be unaligned in memory
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        // in order of their offsets
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Reads the table of one safetensors file given its bytes (the spans point into them). Checks what the format demands:
// header length inside the file and at most 100,000,000 bytes, unique names, known dtypes, offsets that match shape
// times element size, start at a multiple of the element size, and cover the data without gap or overlap. Nothing is
// allocated from an unchecked count. Throws Error{kBadInput} naming `origin` and the tensor or field at fault.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin);

}  // namespace asymkv
