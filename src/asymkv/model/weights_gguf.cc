#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/weights.h"

namespace asymkv {
namespace {

// Part of the configuration: config_from_gguf reads them.
bool is_rope_table(std::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_short.weight" || name == "rope_factors_long.weight";
}

struct NamePair {
  std::string_view gguf;
  std::string_view canonical;
};
constexpr NamePair kGlobalNames[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                     {"output_norm.weight", "model.norm.weight"},
                                     {"output.weight", "lm_head.weight"}};
// After "blk.N." and "model.layers.N.".
constexpr NamePair kLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"}, {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},       {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},       {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},       {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},  {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"}};
constexpr NamePair kHeadNormNames[] = {{"attn_q_norm.weight", "self_attn.q_norm.weight"},
                                       {"attn_k_norm.weight", "self_attn.k_norm.weight"}};
// Families with a norm after attention and after the MLP name the one before the MLP otherwise.
constexpr NamePair kPostNormNames[] = {{"post_attention_norm.weight", "post_attention_layernorm.weight"},
                                       {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
                                       {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"}};
// Fused projections: "up" holds the gate rows and then the up rows.
constexpr NamePair kFusedNames[] = {{"attn_qkv.weight", "self_attn.qkv_proj.weight"},
                                    {"ffn_up.weight", "mlp.gate_up_proj.weight"}};

template <size_t n>
std::optional<std::string_view> find_canonical(const NamePair (&names)[n], std::string_view gguf) {
  for (const NamePair& pair : names) {
    if (pair.gguf == gguf) return pair.canonical;
  }
  return std::nullopt;
}

std::optional<std::string_view> layer_name(std::string_view gguf, const ModelConfig& config) {
  std::optional<std::string_view> name;
  if (config.post_norms) name = find_canonical(kPostNormNames, gguf);
  if (!name && config.qk_norm) name = find_canonical(kHeadNormNames, gguf);
  if (!name && config.fused_projections) name = find_canonical(kFusedNames, gguf);
  return name ? name : find_canonical(kLayerNames, gguf);
}

// Null if the name has no counterpart.
std::optional<std::string> canonical_name(std::string_view name, const ModelConfig& config) {
  if (const auto global = find_canonical(kGlobalNames, name)) return std::string(*global);
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int32_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || end == name.data() + name.size() || *end != '.') return std::nullopt;
  const auto suffix = layer_name(name.substr(static_cast<size_t>(end - name.data()) + 1), config);
  if (!suffix) return std::nullopt;
  return fmt::format("model.layers.{}.{}", layer, *suffix);
}

bool is_q_or_k(std::string_view gguf_name) {
  return gguf_name.ends_with("attn_q.weight") || gguf_name.ends_with("attn_q.bias") ||
         gguf_name.ends_with("attn_k.weight") || gguf_name.ends_with("attn_k.bias");
}

class GgufWeights : public WeightSource {
 public:
  explicit GgufWeights(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {
    const ModelConfig config = config_from_gguf(*file_);
    head_dim_ = config.head_dim;
    // Only llama.cpp's "llama" architecture rotates neighbouring channels; its converter reorders q and k to suit.
    const bool reorders = file_->require_string("general.architecture") == "llama";
    std::vector<TensorInfo> infos;
    std::vector<Stored> stored;
    for (const GgufTensor& tensor : file_->tensors()) {
      if (is_rope_table(tensor.name)) continue;
      const std::optional<std::string> name = canonical_name(tensor.name, config);
      if (!name) throw_bad_input("{}: unknown tensor \"{}\"", file_->origin(), tensor.name);
      const bool interleaved = reorders && is_q_or_k(tensor.name);
      if (interleaved && tensor.shape.front() % head_dim_ != 0) {
        throw_bad_input("{}: tensor \"{}\" has {} rows, not whole heads of {}", file_->origin(), tensor.name,
                        tensor.shape.front(), head_dim_);
      }
      const std::string_view type = ggml_type_name(static_cast<uint32_t>(tensor.type));
      infos.push_back({*name, std::string(type), tensor.shape, static_cast<int64_t>(tensor.bytes.size())});
      stored.push_back({&tensor, interleaved});
    }
    for (const size_t i : set_tensors(std::move(infos), file_->origin())) stored_.push_back(stored[i]);
  }

  std::vector<std::filesystem::path> files() const override { return {file_->origin()}; }

  void drop_resident_pages() const override { file_->drop_resident_pages(); }

 protected:
  void read_row(size_t idx, int64_t row, float* out) const override {
    const Stored& stored = stored_[idx];
    const TensorInfo& tensor = tensors()[idx];
    const bool vector = tensor.shape.size() == 1;
    const auto row_elems = static_cast<size_t>(tensor.row_elems());
    if (!stored.interleaved) return decode_row(stored, tensor, row, {out, row_elems});
    if (!vector) return decode_row(stored, tensor, stored_channel(row), {out, row_elems});
    std::vector<float> values(row_elems);
    decode_row(stored, tensor, 0, values);
    for (size_t i = 0; i < row_elems; ++i) {
      out[i] = values[static_cast<size_t>(stored_channel(static_cast<int64_t>(i)))];
    }
  }

  void copy_row(size_t idx, int64_t row, std::span<std::byte> out) const override {
    const Stored& stored = stored_[idx];
    const TensorInfo& tensor = tensors()[idx];
    const auto row_bytes = static_cast<size_t>(tensor.stored_bytes / tensor.num_rows());
    const int64_t place = stored.interleaved ? stored_channel(row) : row;
    ASYMKV_CHECK(out.size() == row_bytes, "{} bytes for a row of {}", out.size(), row_bytes);
    std::memcpy(out.data(), stored.tensor->bytes.data() + static_cast<size_t>(place) * row_bytes, row_bytes);
  }

 private:
  struct Stored {
    const GgufTensor* tensor;
    bool interleaved;  // channel pairs (p, p + d/2) are stored as neighbours (2p, 2p + 1)
  };

  // Where the file keeps rotate-half channel `channel` of an interleaved tensor.
  int64_t stored_channel(int64_t channel) const {
    const int64_t head = channel / head_dim_;
    const int64_t in_head = channel % head_dim_;
    const int64_t half = head_dim_ / 2;
    return head * head_dim_ + (in_head % half) * 2 + in_head / half;
  }

  static void decode_row(const Stored& stored, const TensorInfo& tensor, int64_t row, std::span<float> out) {
    const auto row_bytes = static_cast<size_t>(tensor.stored_bytes / tensor.num_rows());
    dequantize_ggml(stored.tensor->type, stored.tensor->bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes),
                    out);
  }

  std::shared_ptr<const GgufFile> file_;
  int64_t head_dim_ = 0;
  std::vector<Stored> stored_;  // as tensors()
};

}  // namespace

std::unique_ptr<WeightSource> open_gguf_weights(std::shared_ptr<const GgufFile> file) {
  return std::make_unique<GgufWeights>(std::move(file));
}

}  // namespace asymkv
