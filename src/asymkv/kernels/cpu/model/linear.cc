#include "asymkv/kernels/cpu/model/linear.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"

namespace asymkv::cpu {
namespace {

constexpr int64_t kGroup = 32;            // depth is padded to whole groups
constexpr int64_t kTaskBytes = 48 << 10;  // stored weights of one task with few rows
constexpr int64_t kTileFloats =
    48 << 10;  // a depth step of one task's widened weights: stays in 512 KB of second-level cache
constexpr int64_t kRoundedTileBytes = 224 << 10;  // a task's unpacked codes: about half of a second-level cache
constexpr int64_t kRoundedStoredRows = 8;         // with more, unpacking a tile pays
constexpr int64_t kParallelProducts = 1 << 18;    // below this, threads cost more than they give
constexpr int64_t kParallelRounding = 1 << 16;    // activations
constexpr int64_t kSumRows = 512;                 // rows whose sums are kept between depth steps
constexpr int64_t kStoredTaskRows = 4;            // outputs that a stored-row kernel takes at once
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

// How one part of the matrix is multiplied.
enum class Path { kStored, kTile, kI16, kI16Tile };
struct PartPlan {
  LinearKernels kernels;
  Path path;
};

class Product {
 public:
  Product(const LinearParams& params, Activations activations, LinearScratch& scratch)
      : params_(params),
        scratch_(scratch),
        in_(params.w->in()),
        depth_(round_up(in_, kGroup)),
        input_{params.x, in_, depth_},
        tile_(tile_kernels()) {
    if (depth_ != in_) pad_input();
    bool rounded = false;
    for (const WeightPart& part : params.w->parts()) {
      const LinearKernels kernels = linear_kernels(part.type);
      const bool has_codes = activations == Activations::k16 && kernels.multiply_i16[0] != nullptr;
      const bool stored = params.rows <= kStoredKernelRows && depth_ == in_ && kernels.widen != nullptr;
      if (has_codes) {
        plans_.push_back({kernels, params.rows <= kRoundedStoredRows ? Path::kI16 : Path::kI16Tile});
      } else {
        plans_.push_back({kernels, stored ? Path::kStored : Path::kTile});
      }
      rounded = rounded || has_codes;
    }
    if (rounded) round_input();
    scratch.threads.resize(static_cast<size_t>(num_threads()));
  }

  void run() {
    std::vector<int64_t> rows_per_task;
    for (const WeightPart& part : params_.w->parts()) rows_per_task.push_back(task_rows(part));
    const std::vector<Task> tasks = make_tasks(*params_.w, rows_per_task);
    const auto run_task = [&](int64_t i, int thread_idx) {
      const Task& task = tasks[static_cast<size_t>(i)];
      switch (plan_of(*task.part).path) {
        case Path::kStored:
          return run_stored(task);
        case Path::kI16:
          return run_i16(task);
        case Path::kI16Tile:
          return run_i16_tile(task, scratch_.threads[static_cast<size_t>(thread_idx)]);
        case Path::kTile:
          return run_tile(task, scratch_.threads[static_cast<size_t>(thread_idx)]);
      }
    };
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    if (params_.rows * depth_ * params_.w->rows() >= kParallelProducts) return parallel_for(num_tasks, run_task);
    for (int64_t i = 0; i < num_tasks; ++i) run_task(i, 0);
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

  void round_input() {
    const int64_t groups = round_up(depth_ / kGroup, kQuadGroups);
    auto* codes = reinterpret_cast<int16_t*>(scratch_.codes.reserve(params_.rows * groups * kGroup / 2));
    float* scales = scratch_.x_scales.reserve(2 * params_.rows * groups);
    float* sums = scales + params_.rows * groups;
    rounded_ = {codes, scales, sums, depth_, groups};
    const auto round_row = [&](int64_t r, int) {
      const int64_t used = depth_ / kGroup;
      round_to_i16(params_.x + r * in_, depth_, codes + r * groups * kGroup, scales + r * groups, sums + r * groups);
      std::fill(scales + r * groups + used, scales + (r + 1) * groups, 0.0F);
      std::fill(sums + r * groups + used, sums + (r + 1) * groups, 0.0F);
    };
    if (params_.rows * depth_ >= kParallelRounding) return parallel_for(params_.rows, round_row);
    for (int64_t r = 0; r < params_.rows; ++r) round_row(r, 0);
  }

  void run_stored(const Task& task) const {
    plan_of(*task.part).kernels.multiply_stored[params_.rows - 1](stored_rows(task), input_, output(0));
  }

  void run_i16(const Task& task) const {
    const LinearKernels& kernels = plan_of(*task.part).kernels;
    for (int64_t r = 0; r < params_.rows; r += kStoredKernelRows) {
      const int64_t count = std::min(kStoredKernelRows, params_.rows - r);
      kernels.multiply_i16[count - 1](stored_rows(task), rounded_.from(r), output(r));
    }
  }

  void run_i16_tile(const Task& task, LinearScratch::Thread& scratch) const {
    const LinearKernels& kernels = plan_of(*task.part).kernels;
    const int64_t rows = task.end - task.begin;
    const int64_t num_pairs = round_up(rows, kernels.tile_panel) * depth_ / 2;
    float* memory = scratch.tile.reserve(num_pairs + num_pairs / 8);
    const RoundedTile tile{reinterpret_cast<int32_t*>(memory), memory + num_pairs, rows,
                           task.part->first_row + task.begin};
    kernels.unpack_i16_tile(stored_rows(task), depth_, tile);
    for (int64_t r = 0; r < params_.rows; r += kRoundedTileRows) {
      const int64_t count = std::min(kRoundedTileRows, params_.rows - r);
      kernels.multiply_i16_tile[count - 1](tile, rounded_.from(r), output(r));
    }
  }

  int64_t task_rows(const WeightPart& part) const {
    const PartPlan& plan = plan_of(part);
    if (plan.path == Path::kI16Tile) return round_up(kRoundedTileBytes / (2 * depth_) + 1, plan.kernels.tile_panel);
    if (plan.path != Path::kTile) {
      return round_up(std::max<int64_t>(1, kTaskBytes / part.row_bytes), kStoredTaskRows);
    }
    return std::clamp(kTileFloats / std::min(depth_, kDepthStep) / kMinTileRows * kMinTileRows, kMinTileRows,
                      kMaxTileRows);
  }

  const PartPlan& plan_of(const WeightPart& part) const {
    return plans_[static_cast<size_t>(&part - params_.w->parts().data())];
  }

  LinearOutput output(int64_t row) const {
    const int64_t columns = params_.w->rows();
    return {params_.y + row * columns, columns, params_.bias, params_.accumulate};
  }

  void run_tile(const Task& task, LinearScratch::Thread& scratch) const {
    const int64_t rows = task.end - task.begin;
    const int64_t padded_rows = round_up(rows, kTileAlignRows);
    float* tile = scratch.tile.reserve(padded_rows * depth_);
    const LinearKernels& kernels = plan_of(*task.part).kernels;
    if (kernels.widen == nullptr || depth_ != in_) {
      widen_on_host(task, in_, depth_, tile);
    } else {
      kernels.widen(stored_rows(task), depth_, tile);
    }
    std::fill(tile + rows * depth_, tile + padded_rows * depth_, 0.0F);
    const WidenedTile widened{tile, rows, task.part->first_row + task.begin};
    const int64_t sum_floats = kTileKernelRows * padded_rows * tile_.lanes;
    float* sums = scratch.sums.reserve(std::min(params_.rows, kSumRows) / kTileKernelRows * sum_floats + sum_floats);
    for (int64_t r = 0; r < params_.rows; r += kSumRows) {
      multiply_rows(widened, r, std::min(params_.rows, r + kSumRows), sums, sum_floats);
    }
  }

  // Rows [begin, end) step by step of the depth: a step's weights stay in the second-level cache for all rows.
  void multiply_rows(const WidenedTile& tile, int64_t begin, int64_t end, float* sums, int64_t sum_floats) const {
    for (int64_t k = 0; k < depth_; k += kDepthStep) {
      const DepthStep step{k, std::min(depth_, k + kDepthStep)};
      for (int64_t r = begin; r < end; r += kTileKernelRows) {
        const int64_t count = std::min(kTileKernelRows, end - r);
        const LinearInput input{input_.x + r * input_.x_stride, input_.x_stride, depth_};
        tile_.multiply[count - 1](tile, step, input, output(r), sums + (r - begin) / kTileKernelRows * sum_floats);
      }
    }
  }

  const LinearParams& params_;
  LinearScratch& scratch_;
  int64_t in_;
  int64_t depth_;
  LinearInput input_;
  TileKernels tile_;
  std::vector<PartPlan> plans_;  // of each part
  RoundedInput rounded_;
};

}  // namespace

void run_linear(const LinearParams& params, Activations activations, LinearScratch& scratch) {
  if (params.rows == 0 || params.w->empty()) return;
  Product(params, activations, scratch).run();
}

}  // namespace asymkv::cpu
