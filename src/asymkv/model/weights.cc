#include "asymkv/model/weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/model/gguf.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv {
namespace {

constexpr int64_t kTaskElems = 1 << 16;           // elements read by one parallel task
constexpr int64_t kSerialElems = 4 * kTaskElems;  // below this, threads cost more than they give

// Calls `visit` for each row, on many threads where there are many elements.
template <typename Visit>
void for_each_row(int64_t num_rows, int64_t row_elems, const Visit& visit) {
  if (num_rows * row_elems < kSerialElems) {
    for (int64_t row = 0; row < num_rows; ++row) visit(row);
    return;
  }
  const int64_t task_rows = std::max<int64_t>(1, kTaskElems / row_elems);
  parallel_for((num_rows + task_rows - 1) / task_rows, [&](int64_t task, int /*thread_idx*/) {
    const int64_t end = std::min(num_rows, (task + 1) * task_rows);
    for (int64_t row = task * task_rows; row < end; ++row) visit(row);
  });
}

}  // namespace

int64_t TensorInfo::num_elems() const {
  return num_rows() * row_elems();
}

int64_t TensorInfo::num_rows() const {
  return shape.size() < 2 ? 1 : shape.front();
}

int64_t TensorInfo::row_elems() const {
  const auto first = shape.size() < 2 ? shape.begin() : shape.begin() + 1;
  return std::accumulate(first, shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<size_t> WeightSource::set_tensors(std::vector<TensorInfo> tensors, const std::string& origin) {
  origin_ = origin;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&tensors](size_t i) -> const std::string& { return tensors[i].name; });
  for (const size_t i : order) {
    if (!idx_.emplace(tensors[i].name, tensors_.size()).second) {
      throw_bad_input("{}: tensor \"{}\" appears twice", origin, tensors[i].name);
    }
    tensors_.push_back(std::move(tensors[i]));
  }
  return order;
}

size_t WeightSource::require_idx(std::string_view name) const {
  const auto it = idx_.find(name);
  if (it == idx_.end()) throw_bad_input("{}: tensor \"{}\" is missing", origin_, name);
  return it->second;
}

const TensorInfo& WeightSource::info(std::string_view name) const {
  return tensors_[require_idx(name)];
}

void WeightSource::read_f32(std::string_view name, std::span<float> out) const {
  read_rows_f32(name, 0, info(name).num_rows(), out);
}

std::vector<float> WeightSource::read_f32(std::string_view name) const {
  std::vector<float> values(static_cast<size_t>(info(name).num_elems()));
  read_f32(name, values);
  return values;
}

void WeightSource::append_stored(std::string_view name, WeightMatrix& matrix) const {
  const size_t idx = require_idx(name);
  const TensorInfo& tensor = tensors_[idx];
  const std::optional<GgmlType> type = parse_ggml_type(tensor.memory_type);
  if (!type)
    throw_unsupported("{}: tensor \"{}\" is stored as {}, which no kernel reads", origin_, name, tensor.stored_type);
  ASYMKV_CHECK(tensor.row_elems() == matrix.in(), "rows of {} elements of {} for a matrix of {}", tensor.row_elems(),
               name, matrix.in());
  const int64_t num_rows = tensor.num_rows();
  const std::span<std::byte> memory = matrix.append(*type, num_rows);
  const size_t row_bytes = memory.size() / static_cast<size_t>(std::max<int64_t>(1, num_rows));
  for_each_row(num_rows, tensor.row_elems(), [&](int64_t row) {
    copy_row(idx, row, memory.subspan(static_cast<size_t>(row) * row_bytes, row_bytes));
  });
}

void WeightSource::read_rows_f32(std::string_view name, int64_t first_row, int64_t num_rows,
                                 std::span<float> out) const {
  const size_t idx = require_idx(name);
  const TensorInfo& tensor = tensors_[idx];
  ASYMKV_CHECK(first_row >= 0 && num_rows >= 0 && first_row <= tensor.num_rows() - num_rows,
               "rows [{}, +{}) of {}, which has {}", first_row, num_rows, name, tensor.num_rows());
  const int64_t row_elems = tensor.row_elems();
  ASYMKV_CHECK(static_cast<int64_t>(out.size()) == num_rows * row_elems, "{} floats for {} rows of {} in {}",
               out.size(), num_rows, row_elems, name);
  if (out.empty()) return;
  for_each_row(num_rows, row_elems, [&](int64_t row) { read_row(idx, first_row + row, out.data() + row * row_elems); });
}

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path) {
  std::error_code error;  // the overload without it throws what is not an Error
  if (std::filesystem::is_directory(path, error)) return open_safetensors_weights(path);
  return open_gguf_weights(std::make_shared<GgufFile>(path));
}

}  // namespace asymkv
