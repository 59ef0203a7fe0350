#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace asymkv {

// Type ids of the GGUF container (ggml.h, enum ggml_type) that this library decodes.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct GgmlTypeTraits {
  std::string_view name;  // "Q4_K"
  int64_t block_elems;    // elements of one block; rows are whole blocks
  int64_t block_bytes;    // stored bytes of one block
};

// Null if the id is not one of GgmlType.
const GgmlTypeTraits* find_ggml_type(uint32_t id);
const GgmlTypeTraits& ggml_type_traits(GgmlType type);
// The decoded type of this name ("Q4_K"), if it is one.
std::optional<GgmlType> parse_ggml_type(std::string_view name);
// "F32, F16, ... or MXFP4": the names of all GgmlType, for the sentence that refuses another.
std::string served_ggml_types();
// Name of any id of the container ("IQ2_XS", also for types not decoded here), or "" if no such id is known.
std::string_view ggml_type_name(uint32_t id);

// Exact widening of whole blocks: the same float32 operations, in the same order, as gguf-py's dequantize, so that
// equal bytes give equal bits. Little-endian input, any alignment. out.size() must be a multiple of block_elems and
// stored.size() the matching byte count; throws Error{kInternal} otherwise.
void dequantize_ggml(GgmlType type, std::span<const std::byte> stored, std::span<float> out);

// A block of Q5_0: 32 weights scale * (code - 16) with codes 0..31.
struct Q5Block {
  static constexpr int64_t kElems = 32;
  static constexpr int64_t kBytes = 22;

  uint16_t scale = 0;  // FP16
  std::array<uint8_t, kElems> codes = {};

  static Q5Block read(const std::byte* from);
  void write(std::byte* to) const;
};

}  // namespace asymkv
