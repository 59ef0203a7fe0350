// Any bytes as a GGUF file: the reader gives metadata and tensors that lie inside the file, or throws Error. Everything
// it then offers is exercised: typed access, dequantisation, the configuration, canonical weights.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/weights.h"

namespace {

void check(const asymkv::Error& e) {
  if (e.code() == asymkv::ErrorCode::kInternal) std::abort();
}

template <typename Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const asymkv::Error& e) {
    check(e);
  }
}

void read_values(const asymkv::GgufFile& file) {
  for (const auto& entry : file.values()) {
    const std::string& key = entry.first;  // clang 14 cannot capture a structured binding
    attempt([&] { file.require_int(key); });
    attempt([&] { file.require_number(key); });
    attempt([&] { file.require_bool(key); });
    attempt([&] { file.require_string(key); });
    attempt([&] { file.require_strings(key); });
    attempt([&] { file.require_ints(key); });
    attempt([&] { file.require_floats(key); });
  }
}

void read_tensors(const asymkv::GgufFile& file) {
  for (const asymkv::GgufTensor& tensor : file.tensors()) {
    size_t elems = 1;
    for (const int64_t dim : tensor.shape) elems *= static_cast<size_t>(dim);
    std::vector<float> values(elems);
    asymkv::dequantize_ggml(tensor.type, tensor.bytes, values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  attempt([&] {
    const auto file = std::make_shared<const asymkv::GgufFile>(bytes, "fuzz");
    read_values(*file);
    read_tensors(*file);
    attempt([&] {
      const asymkv::ModelConfig config = asymkv::config_from_gguf(*file);
      for (const asymkv::RopeConfig& rope : config.ropes) {
        attempt([&] { asymkv::rope_inverse_frequencies(rope, config.head_dim, config.max_position_embeddings); });
      }
    });
    const auto weights = asymkv::open_gguf_weights(file);
    for (const asymkv::TensorInfo& tensor : weights->tensors()) weights->read_f32(tensor.name);
  });
  return 0;
}
