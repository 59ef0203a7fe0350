#include "asymkv/kernels/cpu/model/linear.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"

namespace asymkv::cpu {
namespace {

constexpr int64_t kGroup = 32;             // depth is padded to whole groups
constexpr int64_t kTaskBytes = 48 << 10;   // stored weights of one task with few rows
constexpr int64_t kTileFloats = 64 << 10;  // widened weights of one task: half of a second-level cache of 512 KB
constexpr int64_t kStoredTaskRows = 4;     // outputs that a stored-row kernel takes at once
constexpr int64_t kMinTileRows = 12;
constexpr int64_t kMaxTileRows = 96;

int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// Rows [begin, end) of one part.
struct Task {
  const WeightPart* part;
  int64_t begin;
  int64_t end;
};

std::vector<Task> make_tasks(const WeightMatrix& w, const std::vector<int64_t>& rows_per_task) {
  std::vector<Task> tasks;
  for (size_t p = 0; p < w.parts().size(); ++p) {
    const WeightPart& part = w.parts()[p];
    for (int64_t begin = 0; begin < part.num_rows; begin += rows_per_task[p]) {
      tasks.push_back({&part, begin, std::min(part.num_rows, begin + rows_per_task[p])});
    }
  }
  return tasks;
}

StoredRows stored_rows(const Task& task) {
  return {reinterpret_cast<const uint8_t*>(task.part->row(task.begin)), task.part->row_bytes, task.end - task.begin,
          task.part->first_row + task.begin};
}

// Widens row by row through the host's decoder: for types without a kernel and rows that are not whole groups.
void widen_on_host(const Task& task, int64_t in, int64_t depth, float* tile) {
  for (int64_t row = task.begin; row < task.end; ++row, tile += depth) {
    const std::span<const std::byte> stored(task.part->row(row), static_cast<size_t>(task.part->row_bytes));
    dequantize_ggml(task.part->type, stored, {tile, static_cast<size_t>(in)});
    std::fill(tile + in, tile + depth, 0.0F);
  }
}

class Product {
 public:
  Product(const LinearParams& params, LinearScratch& scratch)
      : params_(params),
        scratch_(scratch),
        in_(params.w->in()),
        depth_(round_up(in_, kGroup)),
        input_{params.x, in_, depth_},
        tile_(tile_kernels()) {
    if (depth_ != in_) pad_input();
    bool stored = params.rows <= kStoredKernelRows && depth_ == in_;
    for (const WeightPart& part : params.w->parts()) {
      kernels_.push_back(linear_kernels(part.type));
      stored = stored && kernels_.back().widen != nullptr;
    }
    use_stored_ = stored;
    scratch.threads.resize(static_cast<size_t>(num_threads()));
  }

  void run() {
    std::vector<int64_t> rows_per_task;
    for (const WeightPart& part : params_.w->parts()) rows_per_task.push_back(task_rows(part));
    const std::vector<Task> tasks = make_tasks(*params_.w, rows_per_task);
    parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread_idx) {
      const Task& task = tasks[static_cast<size_t>(i)];
      if (use_stored_) {
        const LinearKernels& kernels = kernels_of(task);
        kernels.multiply_stored[params_.rows - 1](stored_rows(task), input_, output(0));
      } else {
        run_tile(task, scratch_.threads[static_cast<size_t>(thread_idx)]);
      }
    });
  }

 private:
  void pad_input() {
    float* padded = scratch_.padded_x.reserve(params_.rows * depth_);
    for (int64_t r = 0; r < params_.rows; ++r) {
      std::copy_n(params_.x + r * in_, in_, padded + r * depth_);
      std::fill_n(padded + r * depth_ + in_, depth_ - in_, 0.0F);
    }
    input_ = {padded, depth_, depth_};
  }

  int64_t task_rows(const WeightPart& part) const {
    if (use_stored_) return round_up(std::max<int64_t>(1, kTaskBytes / part.row_bytes), kStoredTaskRows);
    return std::clamp(kTileFloats / depth_ / kMinTileRows * kMinTileRows, kMinTileRows, kMaxTileRows);
  }

  const LinearKernels& kernels_of(const Task& task) const {
    return kernels_[static_cast<size_t>(task.part - params_.w->parts().data())];
  }

  LinearOutput output(int64_t row) const {
    const int64_t columns = params_.w->rows();
    return {params_.y + row * columns, columns, params_.bias, params_.accumulate};
  }

  void run_tile(const Task& task, LinearScratch::Thread& scratch) const {
    const int64_t rows = task.end - task.begin;
    const int64_t padded_rows = round_up(rows, kTileAlignRows);
    float* tile = scratch.tile.reserve(padded_rows * depth_);
    float* sums = scratch.sums.reserve(kTileKernelRows * padded_rows * tile_.lanes);
    const LinearKernels& kernels = kernels_of(task);
    if (kernels.widen == nullptr || depth_ != in_) {
      widen_on_host(task, in_, depth_, tile);
    } else {
      kernels.widen(stored_rows(task), depth_, tile);
    }
    std::fill(tile + rows * depth_, tile + padded_rows * depth_, 0.0F);
    const WidenedTile widened{tile, rows, task.part->first_row + task.begin};
    for (int64_t r = 0; r < params_.rows; r += kTileKernelRows) {
      const int64_t count = std::min(kTileKernelRows, params_.rows - r);
      const LinearInput input{input_.x + r * input_.x_stride, input_.x_stride, depth_};
      tile_.multiply[count - 1](widened, input, output(r), sums);
    }
  }

  const LinearParams& params_;
  LinearScratch& scratch_;
  int64_t in_;
  int64_t depth_;
  LinearInput input_;
  TileKernels tile_;
  std::vector<LinearKernels> kernels_;  // of each part
  bool use_stored_ = false;
};

}  // namespace

void run_linear(const LinearParams& params, LinearScratch& scratch) {
  if (params.rows == 0 || params.w->empty()) return;
  Product(params, scratch).run();
}

}  // namespace asymkv::cpu
