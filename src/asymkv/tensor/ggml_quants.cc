#include "asymkv/tensor/ggml_quants.h"

#include <array>
#include <bit>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

static_assert(std::endian::native == std::endian::little, "stored blocks are read as little-endian");

struct NamedType {
  uint32_t id;
  std::string_view name;
};

// Every id of ggml.h, so that a refusal can name the type. Ids 4, 5, 31-33 and 36-38 were withdrawn.
constexpr NamedType kTypeNames[] = {
    {0, "F32"},    {1, "F16"},    {2, "Q4_0"},     {3, "Q4_1"},      {4, "Q4_2"},      {5, "Q4_3"},      {6, "Q5_0"},
    {7, "Q5_1"},   {8, "Q8_0"},   {9, "Q8_1"},     {10, "Q2_K"},     {11, "Q3_K"},     {12, "Q4_K"},     {13, "Q5_K"},
    {14, "Q6_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},   {18, "IQ3_XXS"},  {19, "IQ1_S"},    {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},       {25, "I16"},      {26, "I32"},      {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {30, "BF16"},    {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {34, "TQ1_0"},
    {35, "TQ2_0"}, {39, "MXFP4"}, {40, "NVFP4"},   {41, "Q1_0"},
};

constexpr int64_t kBlock = 32;        // elements of a "legacy" block: one scale for 32 values
constexpr int64_t kSuperBlock = 256;  // elements of a K-quant block

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float load_f16(const uint8_t* bytes) {
  return f16_to_f32(load<uint16_t>(bytes));
}

void decode_f32(const uint8_t* in, float* out) {
  *out = load<float>(in);
}

void decode_f16(const uint8_t* in, float* out) {
  *out = load_f16(in);
}

void decode_bf16(const uint8_t* in, float* out) {
  *out = bf16_to_f32(load<uint16_t>(in));
}

// d * (q - 8); byte j holds elements j (low nibble) and j + 16 (high nibble), here and in every legacy 4-bit type.
void decode_q4_0(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const uint8_t* q = in + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((q[j] & 0xf) - 8);
    out[j + 16] = d * static_cast<float>((q[j] >> 4) - 8);
  }
}

// d * q + m.
void decode_q4_1(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const float m = load_f16(in + 2);
  const uint8_t* q = in + 4;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(q[j] & 0xf) + m;
    out[j + 16] = d * static_cast<float>(q[j] >> 4) + m;
  }
}

// d * (q - 16); bit j of the 32-bit word is the fifth bit of element j.
void decode_q5_0(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const auto high = load<uint32_t>(in + 2);
  const uint8_t* q = in + 6;
  for (int j = 0; j < 16; ++j) {
    const int low = (q[j] & 0xf) | static_cast<int>(((high >> j) & 1U) << 4);
    const int upper = (q[j] >> 4) | static_cast<int>(((high >> (j + 16)) & 1U) << 4);
    out[j] = d * static_cast<float>(low - 16);
    out[j + 16] = d * static_cast<float>(upper - 16);
  }
}

// d * q + m with the fifth bits of Q5_0.
void decode_q5_1(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const float m = load_f16(in + 2);
  const auto high = load<uint32_t>(in + 4);
  const uint8_t* q = in + 8;
  for (int j = 0; j < 16; ++j) {
    const int low = (q[j] & 0xf) | static_cast<int>(((high >> j) & 1U) << 4);
    const int upper = (q[j] >> 4) | static_cast<int>(((high >> (j + 16)) & 1U) << 4);
    out[j] = d * static_cast<float>(low) + m;
    out[j + 16] = d * static_cast<float>(upper) + m;
  }
}

void decode_q8_0(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(in[2 + j]));
}

// (d * scale) * q - (dmin * min): a byte for each 16 elements holds scale (low nibble) and min (high). Each half of 128
// elements is 32 bytes of four 2-bit codes, the first 32 elements lowest; Q3_K packs its low bits alike.
void decode_q2_k(const uint8_t* in, float* out) {
  const uint8_t* scales = in;
  const uint8_t* q = in + 16;
  const float d = load_f16(in + 80);
  const float d_min = load_f16(in + 82);
  for (int e = 0; e < kSuperBlock; ++e) {
    const uint8_t packed = scales[e / 16];
    const int code = (q[(e / 128) * 32 + e % 32] >> (((e % 128) / 32) * 2)) & 3;
    const float scale = d * static_cast<float>(packed & 0xf);
    out[e] = scale * static_cast<float>(code) - d_min * static_cast<float>(packed >> 4);
  }
}

// Scale j of sixteen 6-bit ones in 12 bytes: the low nibbles are the nibbles of bytes 0-7 (low ones first), the upper
// two bits those of bytes 8-11, four scales apart in a byte.
int unpack_q3_k_scale(const uint8_t* packed, int j) {
  const int low = (packed[j % 8] >> ((j / 8) * 4)) & 0xf;
  const int high = (packed[8 + j % 4] >> ((j / 4) * 2)) & 3;
  return (low | (high << 4)) - 32;
}

// (d * scale) * q: q is two bits, minus four where the mask's bit is clear. Bit b of mask byte i is element 32 b + i.
void decode_q3_k(const uint8_t* in, float* out) {
  const uint8_t* mask = in;
  const uint8_t* q = in + 32;
  const float d = load_f16(in + 108);
  for (int e = 0; e < kSuperBlock; ++e) {
    const int low = (q[(e / 128) * 32 + e % 32] >> (((e % 128) / 32) * 2)) & 3;
    const int offset = ((mask[e % 32] >> (e / 32)) & 1) != 0 ? 0 : 4;
    const float scale = d * static_cast<float>(unpack_q3_k_scale(in + 96, e / 16));
    out[e] = scale * static_cast<float>(low - offset);
  }
}

struct ScaleMin {
  float scale;
  float min;
};

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each are the low six bits of bytes 0-3 and
// 4-7; the last four have their low nibbles in bytes 8-11 and their upper two bits on top of bytes 0-7.
ScaleMin unpack_q4_k_scale(const uint8_t* packed, int j) {
  int scale = packed[j] & 63;
  int min = packed[j + 4] & 63;
  if (j >= 4) {
    scale = (packed[j + 4] & 0xf) | ((packed[j - 4] >> 6) << 4);
    min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// (d * scale) * q - (dmin * min) over eight sub-blocks of 32; each run of 32 bytes holds two of them.
void decode_q4_k(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const float d_min = load_f16(in + 2);
  const uint8_t* q = in + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = unpack_q4_k_scale(in + 4, j);
    const float scale = d * packed.scale;
    const float min = d_min * packed.min;
    const uint8_t* run = q + (j / 2) * 32;
    const int shift = (j % 2) * 4;
    for (int i = 0; i < 32; ++i) out[j * 32 + i] = scale * static_cast<float>((run[i] >> shift) & 0xf) - min;
  }
}

// Q4_K with a fifth bit: bit j of byte i of `high` belongs to element i of sub-block j.
void decode_q5_k(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const float d_min = load_f16(in + 2);
  const uint8_t* high = in + 16;
  const uint8_t* q = in + 48;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin packed = unpack_q4_k_scale(in + 4, j);
    const float scale = d * packed.scale;
    const float min = d_min * packed.min;
    const uint8_t* run = q + (j / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = ((run[i] >> ((j % 2) * 4)) & 0xf) | (((high[i] >> j) & 1) << 4);
      out[j * 32 + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// (d * scale) * (q - 32), sixteen signed 8-bit scales of 16 elements. Each half of 128 elements has 64 bytes of low
// nibbles and 32 bytes of upper bit pairs.
void decode_q6_k(const uint8_t* in, float* out) {
  const uint8_t* low = in;
  const uint8_t* high = in + 128;
  const uint8_t* scales = in + 192;
  const float d = load_f16(in + 208);
  for (int e = 0; e < kSuperBlock; ++e) {
    const int half = e / 128;
    const int quarter = (e % 128) / 32;
    const int i = e % 32;
    const int nibble = (low[half * 64 + (quarter % 2) * 32 + i] >> ((quarter / 2) * 4)) & 0xf;
    const int upper = (high[half * 32 + i] >> (quarter * 2)) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[e / 16]));
    out[e] = scale * static_cast<float>((nibble | (upper << 4)) - 32);
  }
}

// The non-linear 4-bit levels of IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl).
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void decode_iq4_nl(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const uint8_t* q = in + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(kIq4Levels[q[j] & 0xf]);
    out[j + 16] = d * static_cast<float>(kIq4Levels[q[j] >> 4]);
  }
}

// (d * (scale - 32)) * level over eight sub-blocks: 6-bit scales, low nibbles in four bytes, upper bit pairs in a word.
void decode_iq4_xs(const uint8_t* in, float* out) {
  const float d = load_f16(in);
  const auto high = load<uint16_t>(in + 2);
  const uint8_t* low = in + 4;
  for (int block = 0; block < 8; ++block) {
    const int nibble = (low[block / 2] >> ((block % 2) * 4)) & 0xf;
    const int scale = (nibble | (((high >> (2 * block)) & 3) << 4)) - 32;
    const float step = d * static_cast<float>(scale);
    const uint8_t* q = in + 8 + block * 16;
    for (int j = 0; j < 16; ++j) {
      out[block * 32 + j] = step * static_cast<float>(kIq4Levels[q[j] & 0xf]);
      out[block * 32 + j + 16] = step * static_cast<float>(kIq4Levels[q[j] >> 4]);
    }
  }
}

// E2M1 times two (OCP microscaling formats 1.0), so the block's power-of-two scale is stored 2^-128 .. 2^126 halved.
constexpr int8_t kMxfp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode_mxfp4(const uint8_t* in, float* out) {
  const uint32_t exponent = in[0];
  // 2^(exponent - 128); the first two are subnormal.
  const float d = std::bit_cast<float>(exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23);
  const uint8_t* q = in + 1;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(kMxfp4Levels[q[j] & 0xf]);
    out[j + 16] = d * static_cast<float>(kMxfp4Levels[q[j] >> 4]);
  }
}

using DecodeBlock = void (*)(const uint8_t* in, float* out);
using DecodeBlocks = void (*)(const GgmlTypeTraits& traits, const uint8_t* in, std::span<float> out);

template <DecodeBlock decode>
void decode_blocks(const GgmlTypeTraits& traits, const uint8_t* in, std::span<float> out) {
  const int64_t num_blocks = static_cast<int64_t>(out.size()) / traits.block_elems;
  for (int64_t b = 0; b < num_blocks; ++b) decode(in + b * traits.block_bytes, out.data() + b * traits.block_elems);
}

struct DecodedType {
  GgmlType type;
  GgmlTypeTraits traits;
  DecodeBlocks decode;
};

constexpr DecodedType kDecodedTypes[] = {
    {GgmlType::kF32, {"F32", 1, 4}, decode_blocks<decode_f32>},
    {GgmlType::kF16, {"F16", 1, 2}, decode_blocks<decode_f16>},
    {GgmlType::kBF16, {"BF16", 1, 2}, decode_blocks<decode_bf16>},
    {GgmlType::kQ4_0, {"Q4_0", kBlock, 2 + 16}, decode_blocks<decode_q4_0>},
    {GgmlType::kQ4_1, {"Q4_1", kBlock, 2 + 2 + 16}, decode_blocks<decode_q4_1>},
    {GgmlType::kQ5_0, {"Q5_0", Q5Block::kElems, Q5Block::kBytes}, decode_blocks<decode_q5_0>},
    {GgmlType::kQ5_1, {"Q5_1", kBlock, 2 + 2 + 4 + 16}, decode_blocks<decode_q5_1>},
    {GgmlType::kQ8_0, {"Q8_0", kBlock, 2 + 32}, decode_blocks<decode_q8_0>},
    {GgmlType::kQ2_K, {"Q2_K", kSuperBlock, 16 + 64 + 2 + 2}, decode_blocks<decode_q2_k>},
    {GgmlType::kQ3_K, {"Q3_K", kSuperBlock, 32 + 64 + 12 + 2}, decode_blocks<decode_q3_k>},
    {GgmlType::kQ4_K, {"Q4_K", kSuperBlock, 2 + 2 + 12 + 128}, decode_blocks<decode_q4_k>},
    {GgmlType::kQ5_K, {"Q5_K", kSuperBlock, 2 + 2 + 12 + 32 + 128}, decode_blocks<decode_q5_k>},
    {GgmlType::kQ6_K, {"Q6_K", kSuperBlock, 128 + 64 + 16 + 2}, decode_blocks<decode_q6_k>},
    {GgmlType::kIq4Nl, {"IQ4_NL", kBlock, 2 + 16}, decode_blocks<decode_iq4_nl>},
    {GgmlType::kIq4Xs, {"IQ4_XS", kSuperBlock, 2 + 2 + 4 + 128}, decode_blocks<decode_iq4_xs>},
    {GgmlType::kMXFP4, {"MXFP4", kBlock, 1 + 16}, decode_blocks<decode_mxfp4>},
};

const DecodedType* find_decoded(uint32_t id) {
  for (const DecodedType& entry : kDecodedTypes) {
    if (static_cast<uint32_t>(entry.type) == id) return &entry;
  }
  return nullptr;
}

}  // namespace

const GgmlTypeTraits* find_ggml_type(uint32_t id) {
  const DecodedType* entry = find_decoded(id);
  return entry == nullptr ? nullptr : &entry->traits;
}

std::string served_ggml_types() {
  std::string names;
  for (const DecodedType& entry : kDecodedTypes) {
    if (!names.empty()) names += &entry == &kDecodedTypes[std::size(kDecodedTypes) - 1] ? " or " : ", ";
    names += entry.traits.name;
  }
  return names;
}

const GgmlTypeTraits& ggml_type_traits(GgmlType type) {
  const GgmlTypeTraits* traits = find_ggml_type(static_cast<uint32_t>(type));
  ASYMKV_CHECK(traits != nullptr, "ggml type id {}", static_cast<uint32_t>(type));
  return *traits;
}

std::optional<GgmlType> parse_ggml_type(std::string_view name) {
  for (const DecodedType& entry : kDecodedTypes) {
    if (entry.traits.name == name) return entry.type;
  }
  return std::nullopt;
}

std::string_view ggml_type_name(uint32_t id) {
  for (const NamedType& entry : kTypeNames) {
    if (entry.id == id) return entry.name;
  }
  return "";
}

void dequantize_ggml(GgmlType type, std::span<const std::byte> stored, std::span<float> out) {
  const DecodedType* entry = find_decoded(static_cast<uint32_t>(type));
  const GgmlTypeTraits* traits = entry == nullptr ? nullptr : &entry->traits;
  ASYMKV_CHECK(traits != nullptr, "ggml type id {}", static_cast<uint32_t>(type));
  const auto num_elems = static_cast<int64_t>(out.size());
  ASYMKV_CHECK(num_elems % traits->block_elems == 0, "{} elements of {}", num_elems, traits->name);
  const int64_t expected_bytes = num_elems / traits->block_elems * traits->block_bytes;
  ASYMKV_CHECK(static_cast<int64_t>(stored.size()) == expected_bytes, "{} bytes for {} elements of {}, need {}",
               stored.size(), num_elems, traits->name, expected_bytes);
  entry->decode(*traits, reinterpret_cast<const uint8_t*>(stored.data()), out);
}

// The scale, the codes' fifth bits, and 16 bytes of two low nibbles: of element i and, above it, of i + 16.
Q5Block Q5Block::read(const std::byte* from) {
  Q5Block block;
  uint32_t fifth_bits = 0;
  std::array<uint8_t, kElems / 2> low = {};
  std::memcpy(&block.scale, from, sizeof(block.scale));
  std::memcpy(&fifth_bits, from + sizeof(block.scale), sizeof(fifth_bits));
  std::memcpy(low.data(), from + sizeof(block.scale) + sizeof(fifth_bits), low.size());
  for (size_t i = 0; i < kElems; ++i) {
    const unsigned nibble = i < low.size() ? low[i] & 0xFU : low[i - low.size()] >> 4U;
    block.codes[i] = static_cast<uint8_t>(nibble | ((fifth_bits >> i) & 1U) << 4U);
  }
  return block;
}

void Q5Block::write(std::byte* to) const {
  uint32_t fifth_bits = 0;
  std::array<uint8_t, kElems / 2> low = {};
  for (size_t i = 0; i < kElems; ++i) {
    fifth_bits |= uint32_t{codes[i]} >> 4U << i;
    uint8_t& both = low[i % low.size()];
    both = static_cast<uint8_t>(both | (codes[i] & 0xFU) << (i < low.size() ? 0U : 4U));
  }
  std::memcpy(to, &scale, sizeof(scale));
  std::memcpy(to + sizeof(scale), &fifth_bits, sizeof(fifth_bits));
  std::memcpy(to + sizeof(scale) + sizeof(fifth_bits), low.data(), low.size());
}

}  // namespace asymkv
