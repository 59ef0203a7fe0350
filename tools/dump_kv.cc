// Diagnostic: runs one prompt with one arm and writes every layer's keys and values before storage and as stored, for
// tests/parity to check against an independent quantiser. The arm names a format; fixed scales are calibrated on the
// prompt itself.
//
//   dump_kv MODEL ARM TOKEN_IDS.json OUT_FOLDER [worker|reference]
//
// worker (default): tokens attend to keys and values as just computed; reference: to the stored bytes.
// OUT_FOLDER/meta.json, and per layer L (little-endian, row-major):
//   kraw.L.bin  FP32 [tokens, kv_heads, head_dim] keys before bias and RoPE
//   k16.L.bin, v16.L.bin  FP32 [tokens, kv_heads, head_dim] after bias, RoPE and rounding to the native type
//   kremoved.L.bin  FP32 [kv_heads, head_dim] the vector taken out (pre-bias arms only)
//   k_stored.L.bin, v_stored.L.bin  stored rows gathered in token order [tokens, kv_heads, row bytes]
//   k_scales.L.bin, v_scales.L.bin  FP32 [tokens, kv_heads] (1 where a side has no scale)
// and nll.bin, FP32 [tokens - 1]: loss of each token from the second on, given those before

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/loaded_model.h"
#include "asymkv/gate/arm.h"
#include "asymkv/runtime/backends.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  write_file_atomic(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void write_floats(const fs::path& path, std::span<const float> values) {
  write_bytes(path, std::as_bytes(values));
}

class DumpObserver final : public ForwardObserver {
 public:
  explicit DumpObserver(fs::path folder) : folder_(std::move(folder)) {}
  void on_layer(const LayerActivations& a) override {
    write_floats(folder_ / fmt::format("kraw.{}.bin", a.layer_idx), a.k_raw);
    write_floats(folder_ / fmt::format("k16.{}.bin", a.layer_idx), a.fresh_k);
    write_floats(folder_ / fmt::format("v16.{}.bin", a.layer_idx), a.fresh_v);
  }

 private:
  fs::path folder_;
};

void dump_layer(const fs::path& folder, const SequencePages& sequence, int64_t layer_idx) {
  const KvLayerView view = sequence.cache().layer(layer_idx);
  const KvLayout& layout = *view.layout;
  const KvGeometry& geometry = layout.geometry();
  std::vector<std::byte> k_rows;
  std::vector<std::byte> v_rows;
  std::vector<float> k_scales;
  std::vector<float> v_scales;
  for (int64_t token = 0; token < sequence.num_tokens(); ++token) {
    const int64_t page = page_index(sequence.pages()[static_cast<size_t>(token / geometry.page_size)]);
    const int64_t slot = token % geometry.page_size;
    for (int64_t head = 0; head < geometry.num_kv_heads; ++head) {
      const std::byte* k = view.k_plane + layout.k_row_offset_bytes(page, head, slot);
      const std::byte* v = view.v_plane + layout.v_row_offset_bytes(page, head, slot);
      k_rows.insert(k_rows.end(), k, k + layout.k_row_payload_bytes());
      v_rows.insert(v_rows.end(), v, v + layout.v_row_payload_bytes());
      k_scales.push_back(view.k_scale(page, head, slot));
      v_scales.push_back(view.v_scale(page, head, slot));
    }
  }
  write_bytes(folder / fmt::format("k_stored.{}.bin", layer_idx), k_rows);
  write_bytes(folder / fmt::format("v_stored.{}.bin", layer_idx), v_rows);
  write_floats(folder / fmt::format("k_scales.{}.bin", layer_idx), k_scales);
  write_floats(folder / fmt::format("v_scales.{}.bin", layer_idx), v_scales);
  if (view.transform != nullptr)
    write_floats(folder / fmt::format("kremoved.{}.bin", layer_idx), view.transform->removed);
}

Json metadata(const LoadedModel& model, const KvCache& cache, ArmId arm, std::span<const int32_t> tokens,
              OwnReads own_reads) {
  const KvGeometry& geometry = cache.layout().geometry();
  const KvFormat& format = cache.layout().format();
  Json fixed = Json::array();
  for (const LayerScales& scales : cache.config().fixed_scales) {
    fixed.push_back({static_cast<double>(scales.key), static_cast<double>(scales.value)});
  }
  return {{"model", model.files.path.string()},
          {"model_type", model.config().model_type},
          {"arm", arm_name(arm)},
          {"path", own_reads == OwnReads::kStored ? "reference" : "worker"},
          {"key", format.key.id()},
          {"value", format.value.id()},
          {"scale", scale_kind_name(format.scale())},
          {"native_dtype", dtype_name(model.config().native_dtype)},
          {"num_layers", cache.config().num_layers},
          {"num_kv_heads", geometry.num_kv_heads},
          {"head_dim", geometry.k_head_dim},
          {"page_size", geometry.page_size},
          {"fixed_scales", fixed},
          {"token_ids", tokens}};
}

// Loss of each token from the second on; hidden: [tokens, hidden_size] after the final norm.
std::vector<float> token_losses(const Decoder& decoder, std::span<const float> hidden,
                                std::span<const int32_t> tokens) {
  const auto width = static_cast<size_t>(decoder.config().hidden_size);
  std::vector<float> losses;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const std::vector<float> logits = decoder.logits(hidden.subspan(i * width, width));
    const double largest = static_cast<double>(*std::ranges::max_element(logits));
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
    const double target = static_cast<double>(logits[static_cast<size_t>(tokens[i + 1])]);
    losses.push_back(static_cast<float>(largest + std::log(sum) - target));
  }
  return losses;
}

OwnReads parse_path(std::string_view name) {
  if (name != "worker" && name != "reference") throw_usage("unknown path \"{}\"; known: worker, reference", name);
  return name == "worker" ? OwnReads::kFresh : OwnReads::kStored;
}

int run(int argc, char** argv) {
  if (argc != 5 && argc != 6) throw_usage("usage: dump_kv MODEL ARM TOKEN_IDS.json OUT_FOLDER [worker|reference]");
  const auto model = load_model(argv[1], select_backends("cpu"));
  const ArmId arm = parse_arm(argv[2]);
  const auto tokens = read_json_file(argv[3]).get<std::vector<int32_t>>();
  const fs::path folder = argv[4];
  fs::create_directories(folder);
  CacheRequest request;
  request.format = arm_format(arm, model->config().native_dtype);
  request.num_pages = static_cast<int64_t>(tokens.size()) / request.page_size + 1;
  ScaleSet scales;
  if (arm_needs_fixed_scales(arm)) {
    scales = calibrate_scales(*model, std::span(&tokens, 1));
    request.scales = &scales;
  }
  const auto cache = make_cache(model->decoder, request);
  SequencePages sequence(*cache);
  ForwardChunk chunk;
  chunk.tokens = tokens;
  chunk.targets = {&sequence};
  chunk.context = &sequence;
  chunk.own_reads = parse_path(argc == 6 ? argv[5] : "worker");
  DumpObserver observer(folder);
  const std::vector<float> hidden =
      model->decoder.forward(std::span(&chunk, 1), model->config().native_dtype, &observer);
  write_floats(folder / "nll.bin", token_losses(model->decoder, hidden, tokens));
  for (int64_t layer = 0; layer < cache->config().num_layers; ++layer) dump_layer(folder, sequence, layer);
  write_file_atomic(folder / "meta.json", metadata(*model, *cache, arm, tokens, chunk.own_reads).dump(1) + "\n");
  return 0;
}

}  // namespace
}  // namespace asymkv

int main(int argc, char** argv) {
  try {
    return asymkv::run(argc, argv);
  } catch (const asymkv::Error& e) {
    fmt::print(stderr, "dump_kv: {}\n", e.what());
    return asymkv::exit_code(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "dump_kv: {}\n", e.what());
    return 70;
  }
}
