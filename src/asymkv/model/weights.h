#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace asymkv {

class GgufFile;
class WeightMatrix;

struct TensorInfo {
  std::string name;            // canonical (Hugging Face) name: "model.layers.0.self_attn.q_proj.weight"
  std::string stored_type;     // "BF16", "F16", "F32", "Q4_K", ...
  std::vector<int64_t> shape;  // outermost first: [out_features, in_features] for a matrix
  int64_t stored_bytes = 0;
  std::string memory_type = stored_type;  // GgmlType it is copied into memory as, without loss

  int64_t num_elems() const;
  // A matrix has shape[0] rows; a vector or a scalar is one row.
  int64_t num_rows() const;
  int64_t row_elems() const;
};

// Read-only tensors of one model under canonical names, whatever the container. GGUF names are mapped, and the q and k
// rows (and biases) of GGUF's "llama" architecture are put back from its interleaved order into the rotate-half one,
// so that RoPE always pairs channels p and p + head_dim / 2. Thread-safe once constructed.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // Sorted by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return idx_.contains(name); }
  // Throws Error{kBadInput} naming the tensor and the file if it is absent; so do the readers.
  const TensorInfo& info(std::string_view name) const;
  // The files that hold the tensors, sorted.
  virtual std::vector<std::filesystem::path> files() const = 0;

  // Widens the whole tensor exactly, on num_threads() threads when large. out.size() must be num_elems().
  void read_f32(std::string_view name, std::span<float> out) const;
  // Rows [first_row, first_row + num_rows) only, same order: out.size() must be num_rows * row_elems().
  void read_rows_f32(std::string_view name, int64_t first_row, int64_t num_rows, std::span<float> out) const;
  // read_f32 into a new vector.
  std::vector<float> read_f32(std::string_view name) const;

  // Appends the tensor's rows to a matrix of the same row length, in their memory_type (no widening), in canonical
  // order, on num_threads() threads when large. Throws Error{kUnsupported} for a memory_type that is no GgmlType.
  void append_stored(std::string_view name, WeightMatrix& matrix) const;
  // Gives mapped pages back to the system: what was copied out of the files need not stay resident twice. Later reads
  // work as before.
  virtual void drop_resident_pages() const = 0;

 protected:
  WeightSource() = default;
  // Takes the table; throws Error{kBadInput} on a name that appears twice. Returns the new order: element i of
  // tensors() was tensors[order[i]].
  std::vector<size_t> set_tensors(std::vector<TensorInfo> tensors, const std::string& origin);
  // Widens one row of tensor `idx` (position in tensors()); `out` has row_elems() floats. Called from many threads.
  virtual void read_row(size_t idx, int64_t row, float* out) const = 0;
  // Copies row `row` of matrix `idx` in its memory_type; `out` has the row's bytes. Called from many threads.
  virtual void copy_row(size_t idx, int64_t row, std::span<std::byte> out) const = 0;

 private:
  size_t require_idx(std::string_view name) const;

  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> idx_;
  std::string origin_;
};

// A folder with model.safetensors or model.safetensors.index.json and its shards. BF16, F16 and F32 tensors, and the
// three tensors of an AWQ matrix (awq.h) as one called "NAME.weight"; another type is Error{kUnsupported} naming tensor
// and type.
std::unique_ptr<WeightSource> open_safetensors_weights(const std::filesystem::path& folder);
bool holds_safetensors(const std::filesystem::path& folder);  // either of the two files
// Throws Error{kBadInput} for a tensor name with no canonical counterpart.
std::unique_ptr<WeightSource> open_gguf_weights(std::shared_ptr<const GgufFile> file);
// Either, by what `path` is: a folder, or one .gguf file.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path);

}  // namespace asymkv
