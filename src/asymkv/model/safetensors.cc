#include "asymkv/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"

namespace asymkv {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's cap
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxDims = 8;  // ours: no known tensor has more

struct ElementType {
  std::string_view name;
  uint64_t bytes;
};
constexpr ElementType kElementTypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};

uint64_t element_bytes(std::string_view dtype) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == dtype) return type.bytes;
  }
  return 0;
}

// One tensor as its JSON object reads.
struct RawEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // begin, end
};

// Streams the header instead of building a tree: a tree would keep the last of two equal names without a word, and
// forged nesting would cost memory. Accepts exactly {"name": {"dtype": s, "shape": [n..], "data_offsets": [n, n]}, ...,
// "__metadata__": {s: s}}.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string_view origin) : origin_(origin) {}

  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { fail("null"); }
  bool boolean(bool /*value*/) override { fail("true or false"); }
  bool number_integer(int64_t value) override { fail(fmt::format("the number {}", value)); }
  bool number_float(double /*value*/, const std::string& text) override { fail("the number " + text); }
  bool binary(Json::binary_t& /*value*/) override { fail("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (array_ == nullptr) fail(fmt::format("the number {}", value));
    if (array_->size() == kMaxDims) fail(fmt::format("more than {} numbers", kMaxDims));
    array_->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (array_ != nullptr || depth_ != 2) fail("a string");
    if (in_metadata_) {
      metadata[field_] = value;
    } else if (field_ == "dtype") {
      entries.back().dtype = value;
    } else {
      fail("a string");
    }
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (depth_ == 2 || array_ != nullptr) fail("an object");
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) check_complete();
    return true;
  }

  bool start_array(size_t /*size*/) override {
    if (depth_ != 2 || in_metadata_ || array_ != nullptr) fail("an array");
    if (field_ == "shape") {
      array_ = &entries.back().shape;
    } else if (field_ == "data_offsets") {
      array_ = &entries.back().offsets;
    } else {
      fail("an array");
    }
    return true;
  }

  bool end_array() override {
    array_ = nullptr;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      start_entry(name);
    } else {
      field_ = name;
      if (!in_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets") {
        throw_bad_input("{}: tensor \"{}\" has the unknown field \"{}\"", origin_, entry_, name);
      }
      if (!fields_.insert(name).second) throw_bad_input("{}: \"{}\" has field \"{}\" twice", origin_, entry_, name);
    }
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::detail::exception& /*e*/) override {
    throw_bad_input("{}: the safetensors header is not valid JSON at byte {}", origin_, position);
  }

 private:
  void start_entry(const std::string& name) {
    if (!names_.insert(name).second) throw_bad_input("{}: tensor \"{}\" appears twice in the header", origin_, name);
    entry_ = name;
    in_metadata_ = name == "__metadata__";
    fields_.clear();
    field_.clear();
    if (!in_metadata_) entries.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
  }

  void check_complete() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) throw_bad_input("{}: tensor \"{}\" has no \"{}\"", origin_, entry_, field);
    }
  }

  [[noreturn]] void fail(const std::string& found) const {
    if (depth_ == 0) throw_bad_input("{}: the safetensors header must be a JSON object, found {}", origin_, found);
    throw_bad_input("{}: unexpected {} in field \"{}\" of \"{}\" in the safetensors header", origin_, found, field_,
                    entry_);
  }

  std::string_view origin_;
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of the object being read
  std::string entry_;
  std::string field_;
  int depth_ = 0;  // objects open
  bool in_metadata_ = false;
  std::vector<uint64_t>* array_ = nullptr;  // where numbers go while an array is open
};

std::span<const std::byte> header_text(std::span<const std::byte> file, std::string_view origin) {
  if (file.size() < kLengthBytes) {
    throw_bad_input("{}: truncated: a safetensors file starts with an 8-byte header length, this one has {} bytes",
                    origin, file.size());
  }
  uint64_t len = 0;
  std::memcpy(&len, file.data(), sizeof(len));
  if (len > kMaxHeaderBytes) {
    throw_bad_input("{}: the header length is {} bytes, the format allows {}", origin, len, kMaxHeaderBytes);
  }
  if (len > file.size() - kLengthBytes) {
    throw_bad_input("{}: truncated: the header length is {} bytes, the file has {} after it", origin, len,
                    file.size() - kLengthBytes);
  }
  return file.subspan(kLengthBytes, static_cast<size_t>(len));
}

// Bytes that shape and dtype call for.
uint64_t shape_bytes(const RawEntry& entry, std::string_view origin) {
  const uint64_t item = element_bytes(entry.dtype);
  if (item == 0) throw_unsupported("{}: tensor \"{}\" has unknown dtype \"{}\"", origin, entry.name, entry.dtype);
  // Zeros are left out of the overflow check: they must not hide a product that no integer can hold.
  auto nonzero = static_cast<int64_t>(item);
  bool empty = false;
  for (const uint64_t size : entry.shape) {
    empty = empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(nonzero, size, &nonzero)) {
      throw_bad_input("{}: the size of tensor \"{}\" overflows 64 bits", origin, entry.name);
    }
  }
  return empty ? 0 : static_cast<uint64_t>(nonzero);
}

SafetensorsEntry check_entry(const RawEntry& raw, std::span<const std::byte> data, std::string_view origin) {
  if (raw.offsets.size() != 2) {
    throw_bad_input("{}: tensor \"{}\" has {} data_offsets, expected 2", origin, raw.name, raw.offsets.size());
  }
  const uint64_t begin = raw.offsets[0];
  const uint64_t end = raw.offsets[1];
  if (begin > end || end > data.size()) {
    throw_bad_input("{}: tensor \"{}\" has data_offsets [{}, {}], outside the {} bytes of data", origin, raw.name,
                    begin, end, data.size());
  }
  const uint64_t bytes = shape_bytes(raw, origin);
  if (end - begin != bytes) {
    throw_bad_input("{}: tensor \"{}\" has {} bytes, its shape and dtype {} need {}", origin, raw.name, end - begin,
                    raw.dtype, bytes);
  }
  if (begin % element_bytes(raw.dtype) != 0) {
    throw_bad_input("{}: tensor \"{}\" starts at offset {}, which is misaligned for {}", origin, raw.name, begin,
                    raw.dtype);
  }
  SafetensorsEntry entry{.name = raw.name, .dtype = raw.dtype, .shape = {}, .bytes = {}};
  for (const uint64_t size : raw.shape) entry.shape.push_back(static_cast<int64_t>(size));
  entry.bytes = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return entry;
}

// Offsets must cover the data exactly, as the format demands: bytes that no tensor owns could hide anything.
void check_cover(const std::vector<SafetensorsEntry>& tensors, std::span<const std::byte> data,
                 std::string_view origin) {
  const std::byte* expected = data.data();
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.bytes.data() < expected) {
      throw_bad_input("{}: tensor \"{}\" overlaps the tensor before it", origin, tensor.name);
    }
    if (tensor.bytes.data() > expected) {
      throw_bad_input("{}: {} unowned bytes before tensor \"{}\"", origin, tensor.bytes.data() - expected, tensor.name);
    }
    expected += tensor.bytes.size();
  }
  const auto left = data.data() + data.size() - expected;
  if (left != 0) throw_bad_input("{}: {} bytes after the last tensor belong to none", origin, left);
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin) {
  const auto text = header_text(file, origin);
  HeaderReader reader(origin);
  const std::string_view json(reinterpret_cast<const char*>(text.data()), text.size());
  Json::sax_parse(json.begin(), json.end(), &reader);

  const auto data = file.subspan(kLengthBytes + text.size());
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  for (const RawEntry& raw : reader.entries) header.tensors.push_back(check_entry(raw, data, origin));
  std::ranges::stable_sort(header.tensors, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.bytes.data() != b.bytes.data() ? a.bytes.data() < b.bytes.data() : a.bytes.size() < b.bytes.size();
  });
  check_cover(header.tensors, data, origin);
  return header;
}

}  // namespace asymkv
