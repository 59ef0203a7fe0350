#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/file.h"
#include "asymkv/tensor/ggml_quants.h"

namespace asymkv {

// Value types of GGUF metadata, with the container's ids.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One metadata value, left in the file: `bytes` are its stored elements.
struct GgufValue {
  GgufValueType type;  // of the elements, if an array; never kArray
  bool is_array = false;
  int64_t count = 1;  // elements
  std::span<const std::byte> bytes;
};

struct GgufTensor {
  std::string name;  // the file's own name, "blk.0.attn_q.weight"
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;        // outermost first: [rows, row length]
  std::span<const std::byte> bytes;  // stored blocks
};

// A GGUF v3 file (little-endian), memory-mapped and checked whole at construction: every count is bounded by the
// file's size before anything is allocated, strings and tensors lie inside the file, names are unique, tensors do not
// overlap. Typed access to metadata; returned string_views and spans live as long as the object (moves keep them).
class GgufFile {
 public:
  // Throws Error{kBadInput} naming the path and the field at fault; Error{kUnsupported} for another version, byte order
  // or tensor type, by name.
  explicit GgufFile(const std::filesystem::path& path);
  // The same over bytes the caller keeps alive; `origin` is named in errors.
  GgufFile(std::span<const std::byte> bytes, std::string origin);

  const std::string& origin() const { return origin_; }
  // Metadata and tensor table: everything before the tensor data.
  std::span<const std::byte> header_bytes() const { return file_.first(header_bytes_); }
  std::span<const std::byte> file_bytes() const { return file_; }

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }
  // Scalars. A key of another type is Error{kBadInput} naming file, key and type; require_* also if it is missing.
  // Integers come from any integer type and must fit int64; numbers from floats and integers.
  int64_t require_int(std::string_view key) const;
  int64_t int_or(std::string_view key, int64_t fallback) const;
  double require_number(std::string_view key) const;
  double number_or(std::string_view key, double fallback) const;
  bool require_bool(std::string_view key) const;
  bool bool_or(std::string_view key, bool fallback) const;
  std::string require_string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;
  // Arrays; all throw if the key is missing or of another element type. String bytes are as stored (any bytes).
  std::vector<std::string_view> require_strings(std::string_view key) const;
  std::vector<int64_t> require_ints(std::string_view key) const;
  std::vector<float> require_floats(std::string_view key) const;

  // Gives the pages of a mapped file back to the system; later reads bring them in again.
  void drop_resident_pages() const { mapped_.drop_resident_pages(); }

  // In the file's order.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Null if absent.
  const GgufTensor* find_tensor(std::string_view name) const;

 private:
  void parse();
  void check_overlap() const;
  const GgufValue* find_scalar(std::string_view key, std::string_view expected) const;
  const GgufValue& require_array(std::string_view key, std::string_view expected) const;

  MappedFile mapped_;
  std::span<const std::byte> file_;
  std::string origin_;
  size_t header_bytes_ = 0;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_idx_;
};

}  // namespace asymkv
