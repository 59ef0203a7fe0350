#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/json.h"
#include "asymkv/model/awq.h"
#include "asymkv/model/safetensors.h"
#include "asymkv/model/weights.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/ggml_quants.h"

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
    std::map<std::string_view, const SafetensorsEntry*> entries;  // a matrix's parts may lie in several shards
    for (const Shard& shard : shards_) {
      for (const SafetensorsEntry& entry : shard.header.tensors) {
        if (!entries.emplace(entry.name, &entry).second) {
          throw_bad_input("{}: tensor \"{}\" appears twice", origin, entry.name);
        }
      }
    }
    std::vector<TensorInfo> infos;
    std::vector<Stored> stored;
    for (const auto& [name, entry] : entries) {
      if (add_awq(*entry, entries, origin, infos, stored)) continue;
      const std::optional<DType> dtype = float_dtype(entry->dtype);
      if (!dtype) {
        throw_unsupported("{}: tensor \"{}\" is stored as {}; use BF16, F16 or F32", origin, name, entry->dtype);
      }
      infos.push_back({entry->name, entry->dtype, entry->shape, static_cast<int64_t>(entry->bytes.size())});
      stored.push_back({*dtype, entry->bytes, std::nullopt});
    }
    for (const size_t i : set_tensors(std::move(infos), origin)) stored_.push_back(std::move(stored[i]));
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
    if (stored.awq) {
      const GgmlTypeTraits& traits = ggml_type_traits(GgmlType::kQ5_0);
      std::vector<std::byte> blocks(static_cast<size_t>(num_elems / traits.block_elems * traits.block_bytes));
      stored.awq->copy_row_as_q5_0(row, blocks);
      return dequantize_ggml(GgmlType::kQ5_0, blocks, {out, static_cast<size_t>(num_elems)});
    }
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

  void copy_row(size_t idx, int64_t row, std::span<std::byte> out) const override {
    const Stored& stored = stored_[idx];
    if (stored.awq) return stored.awq->copy_row_as_q5_0(row, out);
    const auto row_bytes = static_cast<size_t>(tensors()[idx].row_elems() * dtype_bytes(stored.dtype));
    ASYMKV_CHECK(out.size() == row_bytes, "{} bytes for a row of {}", out.size(), row_bytes);
    std::memcpy(out.data(), stored.bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  }

 private:
  struct Stored {
    DType dtype = DType::kF32;
    std::span<const std::byte> bytes;
    std::optional<AwqMatrix> awq;  // instead of the others
  };
  using Entries = std::map<std::string_view, const SafetensorsEntry*>;
  // True if the entry is a part of an AWQ matrix; the first part, "NAME.qweight", adds the whole.
  static bool add_awq(const SafetensorsEntry& entry, const Entries& entries, const std::string& origin,
                      std::vector<TensorInfo>& infos, std::vector<Stored>& stored) {
    const size_t dot = entry.name.rfind('.');
    if (dot == std::string::npos) return false;
    const std::string module = entry.name.substr(0, dot);
    const std::string_view part = std::string_view(entry.name).substr(dot + 1);
    if (part == "qzeros" || part == "scales") return entries.contains(module + ".qweight");
    if (part != "qweight") return false;
    const auto find = [&](const char* name) -> const SafetensorsEntry& {
      const auto it = entries.find(module + name);
      if (it == entries.end()) {
        throw_bad_input("{}: tensor \"{}{}\" is missing, which \"{}\" needs", origin, module, name, entry.name);
      }
      return *it->second;
    };
    const AwqMatrix matrix(module, entry, find(".qzeros"), find(".scales"), origin);
    infos.push_back({module + ".weight",
                     awq_stored_type(matrix.group_size()),
                     {matrix.out(), matrix.in()},
                     matrix.stored_bytes(),
                     "Q5_0"});
    stored.push_back({DType::kF32, {}, matrix});
    return true;
  }

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

bool holds_safetensors(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / kSingleFile, error) || std::filesystem::exists(folder / kIndexFile, error);
}

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
