#include "asymkv/model/awq.h"

#include <array>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/tensor/ggml_quants.h"

namespace asymkv {
namespace {

constexpr int64_t kPerWord = 8;
constexpr std::array<unsigned, kPerWord> kShift = {0, 16, 4, 20, 8, 24, 12, 28};  // bits of output o % 8

void check_tensor(const SafetensorsEntry& entry, std::string_view dtype, std::vector<int64_t> shape,
                  std::string_view origin) {
  if (entry.dtype != dtype) {
    throw_unsupported("{}: tensor \"{}\" is stored as {}; AWQ needs {}", origin, entry.name, entry.dtype, dtype);
  }
  if (entry.shape != shape) {
    throw_bad_input("{}: tensor \"{}\" has shape [{}], the other tensors of this AWQ matrix need [{}]", origin,
                    entry.name, fmt::join(entry.shape, ", "), fmt::join(shape, ", "));
  }
}

template <typename T>
T load(std::span<const std::byte> bytes, int64_t idx) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(idx) * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

AwqMatrix::AwqMatrix(const std::string& name, const SafetensorsEntry& qweight, const SafetensorsEntry& qzeros,
                     const SafetensorsEntry& scales, std::string_view origin)
    : qweight_(qweight.bytes), qzeros_(qzeros.bytes), scales_(scales.bytes) {
  for (const SafetensorsEntry* entry : {&qweight, &scales}) {
    if (entry->shape.size() != 2 || entry->shape[0] < 1 || entry->shape[1] < 1) {
      throw_bad_input("{}: tensor \"{}\" has shape [{}], expected two positive numbers", origin, entry->name,
                      fmt::join(entry->shape, ", "));
    }
  }
  in_ = qweight.shape[0];
  out_ = qweight.shape[1] * kPerWord;  // fits: the tensor lies in the file
  const int64_t num_groups = scales.shape[0];
  check_tensor(qweight, "I32", qweight.shape, origin);
  check_tensor(scales, "F16", {num_groups, out_}, origin);
  check_tensor(qzeros, "I32", {num_groups, qweight.shape[1]}, origin);
  group_size_ = in_ / num_groups;
  if (in_ % num_groups != 0 || group_size_ % Q5Block::kElems != 0) {
    throw_unsupported("{}: \"{}\" has {} groups for {} inputs; only groups of a multiple of {} are supported", origin,
                      name, num_groups, in_, Q5Block::kElems);
  }
}

void AwqMatrix::copy_row_as_q5_0(int64_t row, std::span<std::byte> blocks) const {
  ASYMKV_CHECK(row >= 0 && row < out_ && static_cast<int64_t>(blocks.size()) == in_ / Q5Block::kElems * Q5Block::kBytes,
               "row {} of {}, {} bytes for {} elements", row, out_, blocks.size(), in_);
  const int64_t words = out_ / kPerWord;  // of one input or group
  const unsigned shift = kShift[static_cast<size_t>(row % kPerWord)];
  const auto nibble = [&](std::span<const std::byte> packed, int64_t line) {
    return (load<uint32_t>(packed, line * words + row / kPerWord) >> shift) & 0xFU;
  };
  std::byte* to = blocks.data();
  for (int64_t begin = 0; begin < in_; begin += Q5Block::kElems, to += Q5Block::kBytes) {
    const int64_t group = begin / group_size_;
    Q5Block block;
    block.scale = load<uint16_t>(scales_, group * out_ + row);
    const uint32_t offset = 16 - nibble(qzeros_, group);
    for (int64_t i = 0; i < Q5Block::kElems; ++i) {
      block.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(nibble(qweight_, begin + i) + offset);
    }
    block.write(to);
  }
}

}  // namespace asymkv
