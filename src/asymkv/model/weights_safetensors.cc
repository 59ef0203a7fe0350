#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/json.h"
#include "asymkv/model/safetensors.h"
#include "asymkv/model/weights.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 64 << 20;  // ours: the largest published indexes have a few MB

struct Shard {
  MappedFile file;
  SafetensorsHeader header;
};

Shard open_shard(const std::filesystem::path& path) {
  Shard shard{.file = MappedFile(path), .header = {}};
  shard.header = parse_safetensors(shard.file.bytes(), path.string());
  return shard;
}

// Null if the type cannot be widened to float here.
std::optional<DType> float_dtype(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

class SafetensorsWeights : public WeightSource {
 public:
  SafetensorsWeights(std::vector<Shard> shards, const std::string& origin) : shards_(std::move(shards)) {
    std::vector<TensorInfo> infos;
    std::vector<Stored> stored;
    for (const Shard& shard : shards_) {
      for (const SafetensorsEntry& entry : shard.header.tensors) {
        const std::optional<DType> dtype = float_dtype(entry.dtype);
        if (!dtype) {
          throw_unsupported("{}: tensor \"{}\" is stored as {}; use BF16, F16 or F32", shard.file.path().string(),
                            entry.name, entry.dtype);
        }
        infos.push_back({entry.name, entry.dtype, entry.shape, static_cast<int64_t>(entry.bytes.size())});
        stored.push_back({*dtype, entry.bytes});
      }
    }
    for (const size_t i : set_tensors(std::move(infos), origin)) stored_.push_back(stored[i]);
  }

  std::vector<std::filesystem::path> files() const override {
    std::vector<std::filesystem::path> paths;
    for (const Shard& shard : shards_) paths.push_back(shard.file.path());
    std::ranges::sort(paths);
    return paths;
  }

  void drop_resident_pages() const override {
    for (const Shard& shard : shards_) shard.file.drop_resident_pages();
  }

 protected:
  void read_row(size_t idx, int64_t row, float* out) const override {
    const int64_t num_elems = tensors()[idx].row_elems();
    const Stored& stored = stored_[idx];
    const std::byte* in = stored.bytes.data() + row * num_elems * dtype_bytes(stored.dtype);
    if (stored.dtype == DType::kF32) {
      std::memcpy(out, in, static_cast<size_t>(num_elems) * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < num_elems; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, in + i * 2, sizeof(bits));
      out[i] = stored.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }

  std::span<const std::byte> stored_row(size_t idx, int64_t row) const override {
    const Stored& stored = stored_[idx];
    const auto row_bytes = static_cast<size_t>(tensors()[idx].row_elems() * dtype_bytes(stored.dtype));
    return stored.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
  }

 private:
  struct Stored {
    DType dtype;
    std::span<const std::byte> bytes;
  };
  std::vector<Shard> shards_;
  std::vector<Stored> stored_;  // as tensors()
};

// Tensor name -> shard file name.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kMaxIndexBytes) {
    throw_bad_input("{} has {} bytes, more than the {} an index may have", path.string(), file.bytes().size(),
                    kMaxIndexBytes);
  }
  const Json index =
      parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
  const Json& weight_map = require_field(index, "weight_map", path.string());
  if (!weight_map.is_object() || weight_map.empty()) {
    throw_bad_input("{}: field \"weight_map\" must be a non-empty object", path.string());
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, shard] : weight_map.items()) {
    if (!shard.is_string()) {
      throw_bad_input("{}: weight_map entry \"{}\" must be a string, found {}", path.string(), name, shard.type_name());
    }
    const auto file_name = shard.get<std::string>();
    // A shard lies in the model's own folder: an index must not make us read elsewhere.
    if (file_name.empty() || std::filesystem::path(file_name).filename().string() != file_name || file_name == "..") {
      throw_bad_input("{}: weight_map entry \"{}\" names \"{}\", which is not a plain file name", path.string(), name,
                      file_name);
    }
    result.emplace(name, file_name);
  }
  return result;
}

void check_index(const std::map<std::string, std::string>& weight_map, const std::vector<Shard>& shards,
                 const std::string& origin) {
  std::map<std::string, std::string> found;
  for (const Shard& shard : shards) {
    const std::string file_name = shard.file.path().filename().string();
    for (const SafetensorsEntry& entry : shard.header.tensors) {
      const auto it = weight_map.find(entry.name);
      if (it == weight_map.end() || it->second != file_name) {
        throw_bad_input("{}: shard {} holds tensor \"{}\", which weight_map does not place there", origin, file_name,
                        entry.name);
      }
      found.emplace(entry.name, file_name);
    }
  }
  for (const auto& [name, file_name] : weight_map) {
    if (!found.contains(name)) throw_bad_input("{}: shard {} has no tensor \"{}\"", origin, file_name, name);
  }
}

}  // namespace

std::unique_ptr<WeightSource> open_safetensors_weights(const std::filesystem::path& folder) {
  std::vector<Shard> shards;
  std::error_code error;                                       // the overload without it throws what is not an Error
  if (std::filesystem::exists(folder / kSingleFile, error)) {  // wins over an index, as in transformers
    shards.push_back(open_shard(folder / kSingleFile));
    return std::make_unique<SafetensorsWeights>(std::move(shards), (folder / kSingleFile).string());
  }
  const std::filesystem::path index_path = folder / kIndexFile;
  if (!std::filesystem::exists(index_path, error)) {
    throw_bad_input("{} holds neither {} nor {}; give a folder with safetensors weights or a .gguf file",
                    folder.string(), kSingleFile, kIndexFile);
  }
  const auto weight_map = read_weight_map(index_path);
  std::set<std::string> file_names;
  for (const auto& [name, file_name] : weight_map) file_names.insert(file_name);
  for (const std::string& file_name : file_names) shards.push_back(open_shard(folder / file_name));
  check_index(weight_map, shards, index_path.string());
  return std::make_unique<SafetensorsWeights>(std::move(shards), index_path.string());
}

}  // namespace asymkv
