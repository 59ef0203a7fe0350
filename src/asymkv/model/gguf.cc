#include "asymkv/model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3;
constexpr int64_t kDefaultAlignment = 32;   // of the tensor data, if general.alignment is absent
constexpr int64_t kMaxAlignment = 1 << 16;  // ours: a page-sized padding is sane, a forged one is not
constexpr uint32_t kMaxDims = 4;            // GGML_MAX_DIMS
constexpr size_t kMaxKeyBytes = 65535;      // the format's own limit
constexpr size_t kMaxTensorNameBytes = 64;  // GGML_MAX_NAME
// Least bytes of one entry: a count read from the file is refused when the rest of the file cannot hold it.
constexpr size_t kMinValueEntryBytes = 8 + 4 + 1;
constexpr size_t kMinTensorEntryBytes = 8 + 4 + 8 + 4 + 8;

// Bytes of one element, 0 for strings (their own length) and unknown types.
size_t scalar_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return 0;
}

std::string_view value_type_name(GgufValueType type) {
  constexpr std::string_view kNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                         "bool",  "string", "array",  "uint64", "int64",  "float64"};
  const auto id = static_cast<size_t>(type);
  return id < std::size(kNames) ? kNames[id] : "unknown";
}

std::string describe(const GgufValue& value) {
  const std::string_view name = value_type_name(value.type);
  return value.is_array ? fmt::format("an array of {}", name) : std::string(name);
}

// A position in the file that never runs past its end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(size_t num_bytes, std::string_view what) {
    if (num_bytes > remaining()) {
      throw_bad_input("{}: truncated: {} needs {} bytes at byte {}, the file has {} left", origin_, what, num_bytes,
                      position_, remaining());
    }
    const auto taken = bytes_.subspan(position_, num_bytes);
    position_ += num_bytes;
    return taken;
  }

  template <typename T>
  T scalar(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view string(std::string_view what) {
    const auto len = scalar<uint64_t>(what);
    if (len > remaining()) {
      throw_bad_input("{}: {} claims {} bytes at byte {}, the file has {} left", origin_, what, len, position_,
                      remaining());
    }
    const auto text = take(static_cast<size_t>(len), what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  // A count of entries that each take at least min_bytes.
  size_t count(size_t min_bytes, std::string_view what) {
    const auto value = scalar<uint64_t>(what);
    check_count(value, min_bytes, what);
    return static_cast<size_t>(value);
  }

  void check_count(uint64_t value, size_t min_bytes, std::string_view what) const {
    if (value > remaining() / min_bytes) {
      throw_bad_input("{}: {} is {}, more than the {} bytes left in the file can hold", origin_, what, value,
                      remaining());
    }
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& origin_;
  size_t position_ = 0;
};

GgufValueType read_value_type(Cursor& cursor, std::string_view key, const std::string& origin) {
  const auto id = cursor.scalar<uint32_t>("a metadata type");
  if (id > static_cast<uint32_t>(GgufValueType::kFloat64)) {
    throw_bad_input("{}: metadata key \"{}\" has unknown value type {}", origin, key, id);
  }
  return static_cast<GgufValueType>(id);
}

GgufValue read_elements(Cursor& cursor, GgufValue value, std::span<const std::byte> file, std::string_view key) {
  const size_t start = cursor.position();
  const std::string what = fmt::format("the value of metadata key \"{}\"", key);
  if (value.type == GgufValueType::kString) {
    for (int64_t i = 0; i < value.count; ++i) cursor.string(what);
  } else {
    cursor.take(static_cast<size_t>(value.count) * scalar_bytes(value.type), what);
  }
  value.bytes = file.subspan(start, cursor.position() - start);
  return value;
}

GgufValue read_value(Cursor& cursor, std::span<const std::byte> file, std::string_view key, const std::string& origin) {
  GgufValue value{.type = read_value_type(cursor, key, origin), .is_array = false, .count = 1, .bytes = {}};
  if (value.type == GgufValueType::kArray) {
    value.is_array = true;
    value.type = read_value_type(cursor, key, origin);
    if (value.type == GgufValueType::kArray) {
      throw_unsupported("{}: metadata key \"{}\" is an array of arrays, which no known model needs", origin, key);
    }
    const size_t min_bytes = std::max<size_t>(scalar_bytes(value.type), 1);
    const size_t string_bytes = value.type == GgufValueType::kString ? sizeof(uint64_t) : min_bytes;
    value.count =
        static_cast<int64_t>(cursor.count(string_bytes, fmt::format("the length of metadata array \"{}\"", key)));
  }
  return read_elements(cursor, value, file, key);
}

struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;  // from the start of the tensor data
  uint64_t bytes = 0;
};

void read_shape(Cursor& cursor, TensorEntry& entry, const std::string& origin) {
  const auto num_dims = cursor.scalar<uint32_t>("a tensor's number of dimensions");
  if (num_dims == 0 || num_dims > kMaxDims) {
    throw_bad_input("{}: tensor \"{}\" has {} dimensions, allowed are 1 to {}", origin, entry.tensor.name, num_dims,
                    kMaxDims);
  }
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto size = cursor.scalar<uint64_t>("a tensor's dimension");
    if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw_bad_input("{}: tensor \"{}\" has a dimension of {}", origin, entry.tensor.name, size);
    }
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<int64_t>(size));  // stored innermost first
  }
}

void set_type_and_bytes(uint32_t type_id, TensorEntry& entry, const std::string& origin) {
  const std::string& name = entry.tensor.name;
  const GgmlTypeTraits* traits = find_ggml_type(type_id);
  if (traits == nullptr) {
    const std::string_view type_name = ggml_type_name(type_id);
    if (type_name.empty()) throw_bad_input("{}: tensor \"{}\" has unknown type id {}", origin, name, type_id);
    throw_unsupported("{}: tensor \"{}\" is stored as {}; use {}", origin, name, type_name, served_ggml_types());
  }
  entry.tensor.type = static_cast<GgmlType>(type_id);
  const int64_t row = entry.tensor.shape.back();
  if (row % traits->block_elems != 0) {
    throw_bad_input("{}: tensor \"{}\" has rows of {} elements, not whole {} blocks of {}", origin, name, row,
                    traits->name, traits->block_elems);
  }
  int64_t bytes = traits->block_bytes;
  bool overflow = __builtin_mul_overflow(bytes, row / traits->block_elems, &bytes);
  for (size_t i = 0; i + 1 < entry.tensor.shape.size(); ++i) {
    overflow = overflow || __builtin_mul_overflow(bytes, entry.tensor.shape[i], &bytes);
  }
  if (overflow) throw_bad_input("{}: the size of tensor \"{}\" overflows 64 bits", origin, name);
  entry.bytes = static_cast<uint64_t>(bytes);
}

TensorEntry read_tensor_entry(Cursor& cursor, const std::string& origin) {
  TensorEntry entry;
  const std::string_view name = cursor.string("a tensor's name");
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    throw_bad_input("{}: a tensor's name has {} bytes, allowed are 1 to {}", origin, name.size(), kMaxTensorNameBytes);
  }
  entry.tensor.name = name;
  read_shape(cursor, entry, origin);
  const auto type_id = cursor.scalar<uint32_t>("a tensor's type");
  set_type_and_bytes(type_id, entry, origin);
  entry.offset = cursor.scalar<uint64_t>("a tensor's offset");
  return entry;
}

std::span<const std::byte> tensor_bytes(const TensorEntry& entry, std::span<const std::byte> data, int64_t alignment,
                                        const std::string& origin) {
  if (entry.offset % static_cast<uint64_t>(alignment) != 0) {
    throw_bad_input("{}: tensor \"{}\" starts at offset {}, which is no multiple of the alignment {}", origin,
                    entry.tensor.name, entry.offset, alignment);
  }
  if (entry.offset > data.size() || entry.bytes > data.size() - entry.offset) {
    throw_bad_input("{}: truncated: tensor \"{}\" needs {} bytes at offset {}, the tensor data has {} in all", origin,
                    entry.tensor.name, entry.bytes, entry.offset, data.size());
  }
  return data.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes));
}

template <typename T>
T element(std::span<const std::byte> bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

bool is_integer(GgufValueType type) {
  return type != GgufValueType::kFloat32 && type != GgufValueType::kFloat64 && type != GgufValueType::kBool &&
         type != GgufValueType::kString && type != GgufValueType::kArray;
}

// Element i of an integer value; false if a uint64 does not fit.
bool int_element(const GgufValue& value, size_t i, int64_t& out) {
  switch (value.type) {
    case GgufValueType::kUint8:
      out = element<uint8_t>(value.bytes, i);
      return true;
    case GgufValueType::kInt8:
      out = element<int8_t>(value.bytes, i);
      return true;
    case GgufValueType::kUint16:
      out = element<uint16_t>(value.bytes, i);
      return true;
    case GgufValueType::kInt16:
      out = element<int16_t>(value.bytes, i);
      return true;
    case GgufValueType::kUint32:
      out = element<uint32_t>(value.bytes, i);
      return true;
    case GgufValueType::kInt32:
      out = element<int32_t>(value.bytes, i);
      return true;
    case GgufValueType::kInt64:
      out = element<int64_t>(value.bytes, i);
      return true;
    default:
      break;
  }
  const auto wide = element<uint64_t>(value.bytes, i);
  out = static_cast<int64_t>(wide);
  return wide <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

void check_magic_and_version(Cursor& cursor, const std::string& origin) {
  const auto magic = cursor.take(kMagic.size(), "the magic number");
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    throw_bad_input("{} is not a GGUF file: it does not start with \"GGUF\"", origin);
  }
  const auto version = cursor.scalar<uint32_t>("the version");
  if (version == kVersion) return;
  if ((version & 0xffffU) == 0) throw_unsupported("{} is a big-endian GGUF file; convert it to little-endian", origin);
  throw_unsupported("{} is GGUF version {}; only version {} is read", origin, version, kVersion);
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : mapped_(path), file_(mapped_.bytes()), origin_(path.string()) {
  parse();
}

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string origin) : file_(bytes), origin_(std::move(origin)) {
  parse();
}

void GgufFile::parse() {
  Cursor cursor(file_, origin_);
  check_magic_and_version(cursor, origin_);
  const size_t num_tensors = cursor.count(kMinTensorEntryBytes, "the tensor count");
  const size_t num_values = cursor.count(kMinValueEntryBytes, "the metadata count");
  for (size_t i = 0; i < num_values; ++i) {
    const std::string_view key = cursor.string("a metadata key");
    if (key.empty() || key.size() > kMaxKeyBytes)
      throw_bad_input("{}: a metadata key has {} bytes", origin_, key.size());
    const GgufValue value = read_value(cursor, file_, key, origin_);
    if (!values_.emplace(key, value).second) throw_bad_input("{}: metadata key \"{}\" appears twice", origin_, key);
  }
  const int64_t alignment = int_or("general.alignment", kDefaultAlignment);
  if (alignment < 1 || alignment > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    throw_bad_input("{}: general.alignment is {}, expected a power of two up to {}", origin_, alignment, kMaxAlignment);
  }
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < num_tensors; ++i) entries.push_back(read_tensor_entry(cursor, origin_));

  const size_t mask = static_cast<size_t>(alignment) - 1;
  header_bytes_ = std::min((cursor.position() + mask) & ~mask, file_.size());
  for (TensorEntry& entry : entries) {
    entry.tensor.bytes = tensor_bytes(entry, file_.subspan(header_bytes_), alignment, origin_);
    if (!tensor_idx_.emplace(entry.tensor.name, tensors_.size()).second) {
      throw_bad_input("{}: tensor \"{}\" appears twice", origin_, entry.tensor.name);
    }
    tensors_.push_back(std::move(entry.tensor));
  }
  check_overlap();
}

void GgufFile::check_overlap() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : tensors_) order.push_back(&tensor);
  std::ranges::sort(order, {}, [](const GgufTensor* tensor) { return tensor->bytes.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = *order[i - 1];
    if (before.bytes.data() + before.bytes.size() > order[i]->bytes.data()) {
      throw_bad_input("{}: tensors \"{}\" and \"{}\" overlap", origin_, before.name, order[i]->name);
    }
  }
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_idx_.find(name);
  return it == tensor_idx_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find_scalar(std::string_view key, std::string_view expected) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return nullptr;
  if (it->second.is_array) {
    throw_bad_input("{}: metadata key \"{}\" must be {}, found {}", origin_, key, expected, describe(it->second));
  }
  return &it->second;
}

const GgufValue& GgufFile::require_array(std::string_view key, std::string_view expected) const {
  const auto it = values_.find(key);
  if (it == values_.end()) throw_bad_input("{}: metadata key \"{}\" is missing", origin_, key);
  if (!it->second.is_array) {
    throw_bad_input("{}: metadata key \"{}\" must be {}, found {}", origin_, key, expected, describe(it->second));
  }
  return it->second;
}

int64_t GgufFile::require_int(std::string_view key) const {
  const GgufValue* value = find_scalar(key, "an integer");
  if (value == nullptr) throw_bad_input("{}: metadata key \"{}\" is missing", origin_, key);
  if (!is_integer(value->type)) {
    throw_bad_input("{}: metadata key \"{}\" must be an integer, found {}", origin_, key, describe(*value));
  }
  int64_t result = 0;
  if (!int_element(*value, 0, result)) {
    throw_bad_input("{}: metadata key \"{}\" is {}, above the largest integer served, {}", origin_, key,
                    element<uint64_t>(value->bytes, 0), INT64_MAX);
  }
  return result;
}

int64_t GgufFile::int_or(std::string_view key, int64_t fallback) const {
  return has(key) ? require_int(key) : fallback;
}

double GgufFile::require_number(std::string_view key) const {
  const GgufValue* value = find_scalar(key, "a number");
  if (value == nullptr) throw_bad_input("{}: metadata key \"{}\" is missing", origin_, key);
  if (value->type == GgufValueType::kFloat32) return static_cast<double>(element<float>(value->bytes, 0));
  if (value->type == GgufValueType::kFloat64) return element<double>(value->bytes, 0);
  if (!is_integer(value->type)) {
    throw_bad_input("{}: metadata key \"{}\" must be a number, found {}", origin_, key, describe(*value));
  }
  return static_cast<double>(require_int(key));
}

double GgufFile::number_or(std::string_view key, double fallback) const {
  return has(key) ? require_number(key) : fallback;
}

bool GgufFile::require_bool(std::string_view key) const {
  const GgufValue* value = find_scalar(key, "a bool");
  if (value == nullptr) throw_bad_input("{}: metadata key \"{}\" is missing", origin_, key);
  if (value->type != GgufValueType::kBool) {
    throw_bad_input("{}: metadata key \"{}\" must be a bool, found {}", origin_, key, describe(*value));
  }
  return element<uint8_t>(value->bytes, 0) != 0;
}

bool GgufFile::bool_or(std::string_view key, bool fallback) const {
  return has(key) ? require_bool(key) : fallback;
}

std::string GgufFile::require_string(std::string_view key) const {
  const GgufValue* value = find_scalar(key, "a string");
  if (value == nullptr) throw_bad_input("{}: metadata key \"{}\" is missing", origin_, key);
  if (value->type != GgufValueType::kString) {
    throw_bad_input("{}: metadata key \"{}\" must be a string, found {}", origin_, key, describe(*value));
  }
  return std::string(Cursor(value->bytes, origin_).string(key));
}

std::string GgufFile::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? require_string(key) : std::string(fallback);
}

std::vector<std::string_view> GgufFile::require_strings(std::string_view key) const {
  const GgufValue& value = require_array(key, "an array of strings");
  if (value.type != GgufValueType::kString) {
    throw_bad_input("{}: metadata key \"{}\" must be an array of strings, found {}", origin_, key, describe(value));
  }
  Cursor cursor(value.bytes, origin_);
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value.count));
  for (int64_t i = 0; i < value.count; ++i) strings.push_back(cursor.string(key));
  return strings;
}

std::vector<int64_t> GgufFile::require_ints(std::string_view key) const {
  const GgufValue& value = require_array(key, "an array of integers");
  if (!is_integer(value.type)) {
    throw_bad_input("{}: metadata key \"{}\" must be an array of integers, found {}", origin_, key, describe(value));
  }
  std::vector<int64_t> ints(static_cast<size_t>(value.count));
  for (size_t i = 0; i < ints.size(); ++i) {
    if (!int_element(value, i, ints[i])) {
      throw_bad_input("{}: element {} of metadata key \"{}\" is {}, above the largest integer served, {}", origin_, i,
                      key, element<uint64_t>(value.bytes, i), INT64_MAX);
    }
  }
  return ints;
}

std::vector<float> GgufFile::require_floats(std::string_view key) const {
  const GgufValue& value = require_array(key, "an array of float32");
  if (value.type != GgufValueType::kFloat32) {
    throw_bad_input("{}: metadata key \"{}\" must be an array of float32, found {}", origin_, key, describe(value));
  }
  std::vector<float> floats(static_cast<size_t>(value.count));
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = element<float>(value.bytes, i);
  return floats;
}

}  // namespace asymkv
