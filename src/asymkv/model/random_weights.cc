#include "asymkv/model/random_weights.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/kv/measured_bias.h"
#include "asymkv/model/awq.h"
#include "asymkv/model/model_files.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/ggml_quants.h"

namespace asymkv {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
constexpr float kBiasSigma = 0.1F;

// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a counter in, a number out.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t tensor_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix(seed * kGamma + hash);
}

uint64_t draw(uint64_t key, int64_t i) {
  return mix(key + static_cast<uint64_t>(i) * kGamma);
}

// Mean 0, variance 1: the sum of a number's eight bytes, each uniform in 0 to 255.
float near_normal(uint64_t bits) {
  constexpr uint64_t kEven = 0x00ff00ff00ff00ffULL;
  const uint64_t pairs = (bits & kEven) + ((bits >> 8) & kEven);
  const auto sum = static_cast<float>(pairs * 0x0001000100010001ULL >> 48);
  constexpr float kMean = 1020.0F, kSigma = 209.0159F;  // 8 * 127.5, sqrt(8 (256^2 - 1) / 12)
  return (sum - kMean) * (1.0F / kSigma);
}

class RandomWeights final : public WeightSource {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed)
      : dtype_(config.native_dtype),
        head_dim_(config.head_dim),
        norm_(1.0F - static_cast<float>(config.norm_weight_offset)) {
    const std::string stored = dtype_ == DType::kBF16 ? "BF16" : dtype_ == DType::kF16 ? "F16" : "F32";
    std::vector<TensorInfo> infos;
    for (RequiredTensor& tensor : required_tensors(config)) {
      TensorInfo& info = infos.emplace_back(TensorInfo{std::move(tensor.name), stored, std::move(tensor.shape)});
      info.stored_bytes = info.num_elems() * dtype_bytes(dtype_);
      if (config.awq_group_size != 0 && info.name.ends_with("_proj.weight")) make_awq(awq_group(config, info), info);
    }
    set_tensors(std::move(infos), "random weights");
    for (const TensorInfo& tensor : tensors()) {
      const bool vector = tensor.shape.size() < 2;
      const Kind kind = tensor.memory_type == "Q5_0"           ? Kind::kAwq
                        : tensor.name.ends_with("norm.weight") ? Kind::kNorm
                        : tensor.name.ends_with("k_proj.bias") ? Kind::kKeyBias
                                                               : Kind::kNormal;
      const float sigma = vector ? kBiasSigma : 1.0F / std::sqrt(static_cast<float>(tensor.row_elems()));
      drawn_.push_back({tensor_key(seed, tensor.name), kind, sigma, awq_group(config, tensor)});
    }
  }

  std::vector<std::filesystem::path> files() const override { return {}; }
  void drop_resident_pages() const override {}

 protected:
  void read_row(size_t idx, int64_t row, float* out) const override {
    const Drawn& drawn = drawn_[idx];
    const int64_t count = tensors()[idx].row_elems();
    if (drawn.kind == Kind::kAwq) {
      std::vector<std::byte> blocks(static_cast<size_t>(count / Q5Block::kElems * Q5Block::kBytes));
      draw_awq_row(drawn, row, blocks);
      return dequantize_ggml(GgmlType::kQ5_0, blocks, {out, static_cast<size_t>(count)});
    }
    for (int64_t i = 0; i < count; ++i) {
      const float value = drawn.kind == Kind::kNormal    ? near_normal(draw(drawn.key, row * count + i)) * drawn.sigma
                          : drawn.kind == Kind::kKeyBias ? key_bias(drawn.key, i)
                                                         : norm_;
      out[i] = round_to(dtype_, value);
    }
  }

  void copy_row(size_t idx, int64_t row, std::span<std::byte> out) const override {
    if (drawn_[idx].kind == Kind::kAwq) return draw_awq_row(drawn_[idx], row, out);
    std::vector<float> values(static_cast<size_t>(tensors()[idx].row_elems()));
    read_row(idx, row, values.data());
    if (dtype_ == DType::kF32) {
      std::memcpy(out.data(), values.data(), out.size());
      return;
    }
    auto* const to = reinterpret_cast<uint16_t*>(out.data());  // rows of a matrix are aligned
    const bool bf16 = dtype_ == DType::kBF16;
    for (size_t i = 0; i < values.size(); ++i) to[i] = bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
  }

 private:
  enum class Kind { kNormal, kKeyBias, kNorm, kAwq };
  struct Drawn {
    uint64_t key = 0;
    Kind kind = Kind::kNormal;
    float sigma = 0.0F;
    int64_t awq_group = 0;
  };

  static int64_t awq_group(const ModelConfig& config, const TensorInfo& info) {
    return config.awq_group_size == -1 ? info.row_elems() : config.awq_group_size;
  }

  static void make_awq(int64_t group, TensorInfo& info) {
    if (group % Q5Block::kElems != 0 || info.row_elems() % group != 0) {
      throw_unsupported(
          "quantization_config.group_size: rows of \"{}\" have {} elements, no whole groups of {} in blocks of {}",
          info.name, info.row_elems(), group, Q5Block::kElems);
    }
    info.stored_type = awq_stored_type(group);
    info.memory_type = "Q5_0";
    // A nibble an element; a nibble and an FP16 scale a group.
    info.stored_bytes = info.num_elems() / 2 + info.num_elems() / group * 5 / 2;
  }

  // Uniform codes, and zero points of 7 and 8 so that their mean is 0.
  static void draw_awq_row(const Drawn& drawn, int64_t row, std::span<std::byte> blocks) {
    constexpr float kSigma = 4.6098F;  // of a code: sqrt((16^2 - 1) / 12)
    Q5Block block;
    block.scale = f32_to_f16(drawn.sigma / kSigma);
    const int64_t count = std::ssize(blocks) / Q5Block::kBytes * Q5Block::kElems;
    for (int64_t begin = 0; begin < count; begin += Q5Block::kElems) {
      const int64_t first_of_group = row * count + begin / drawn.awq_group * drawn.awq_group;
      const uint64_t offset = 16 - 7 - (draw(drawn.key, first_of_group) >> 63);
      for (int64_t i = 0; i < Q5Block::kElems; ++i) {
        const uint64_t code = draw(drawn.key, row * count + begin + i) % 16;
        block.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(code + offset);
      }
      block.write(blocks.data() + begin / Q5Block::kElems * Q5Block::kBytes);
    }
  }

  // Channels p and p + head_dim / 2 of a head are its RoPE pair p.
  float key_bias(uint64_t key, int64_t i) const {
    const int64_t pairs = head_dim_ / 2, channel = i % head_dim_, pair = channel % pairs;
    const auto turns = static_cast<double>(draw(key, i - channel + pair) >> 11) * 0x1.0p-53;
    const double angle = turns * 2.0 * std::numbers::pi;
    return static_cast<float>(measured_bias(pair, pairs) * (channel < pairs ? std::cos(angle) : std::sin(angle)));
  }

  DType dtype_;
  int64_t head_dim_;
  float norm_;
  std::vector<Drawn> drawn_;  // as tensors()
};

}  // namespace

std::unique_ptr<WeightSource> make_random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config, seed);
}

}  // namespace asymkv
