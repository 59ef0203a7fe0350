#include "asymkv/kernels/cpu/model/cpu_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/cpu/model/elementwise.h"
#include "asymkv/kernels/cpu/model/linear.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/kv/codec.h"

namespace asymkv {
namespace {

// Rows that one parallel iteration takes: enough work to pay for handing it out.
int64_t rows_per_task(int64_t row_elems) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elems));
}

template <typename Body>
void for_row_blocks(int64_t rows, int64_t row_elems, const Body& body) {
  const int64_t block = rows_per_task(row_elems);
  const int64_t tasks = (rows + block - 1) / block;
  if (tasks <= 1) return body(0, rows);
  parallel_for(tasks, [&](int64_t task, int) { body(task * block, std::min(rows, (task + 1) * block)); });
}

using GateRow = void (*)(int64_t dim, const float* gate, const float* up, float* y);

// `row` on every row of [gate | up].
void gate_mul(int64_t rows, int64_t dim, const float* gate_up, float* y, GateRow row) {
  for_row_blocks(rows, dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * (dim + dim);
      row(dim, gate, gate + dim, y + r * dim);
    }
  });
}

void copy_with_bias(int64_t dim, const float* x, const float* bias, float* y) {
  if (bias == nullptr) {
    std::copy_n(x, dim, y);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) y[i] = x[i] + bias[i];
}

double target_loss(std::span<const float> row, int32_t target) {
  const float largest = *std::ranges::max_element(row);
  double sum = 0.0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - largest);
  return std::log(sum) + largest - row[static_cast<size_t>(target)];
}

class CpuModelBackend final : public ModelBackend {
 public:
  explicit CpuModelBackend(Activations activations)
      : activations_(activations),
        name_(fmt::format("cpu-{}-{}", cpu::linear_target_name(), activations == Activations::k16 ? "a16" : "a32")) {}

  std::string_view name() const override { return name_; }

  FloatArray allocate(int64_t elems) const override {
    return {std::shared_ptr<float>(new float[static_cast<size_t>(elems)], std::default_delete<float[]>()), elems};
  }
  void upload(std::span<const float> from, float* to) const override { std::ranges::copy(from, to); }
  void download(const float* from, std::span<float> to) const override { std::copy_n(from, to.size(), to.begin()); }
  void place(WeightMatrix& /*matrix*/, bool /*keep_host*/) const override {}  // products read what the file stores

  void linear(const LinearParams& p) const override {
    std::unique_ptr<cpu::LinearScratch> scratch = scratch_.take();
    cpu::run_linear(p, activations_, *scratch);
    scratch_.give_back(std::move(scratch));
  }

  void rms_norm(const RmsNormParams& p) const override {
    for_row_blocks(p.rows, p.dim, [&](int64_t begin, int64_t end) {
      cpu::rms_norm_rows({end - begin, p.dim, p.eps, p.x + begin * p.dim, p.weight, p.y + begin * p.dim});
    });
  }

  void silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override {
    gate_mul(rows, dim, gate_up, y, cpu::silu_mul_row);
  }

  void gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override {
    gate_mul(rows, dim, gate_up, y, cpu::gelu_mul_row);
  }

  void prepare_qkv(const PrepareQkvParams& p) const override {
    const SplitQkvParams& split = p.split;
    const int64_t num_q_heads = split.q_dim / p.head_dim, num_kv_heads = split.kv_dim / p.head_dim;
    split_qkv(split);
    if (p.q_norm != nullptr) rms_norm({split.rows * num_q_heads, p.head_dim, p.eps, split.q, p.q_norm, split.q});
    if (p.k_norm != nullptr) rms_norm({split.rows * num_kv_heads, p.head_dim, p.eps, split.k, p.k_norm, split.k});
    rotate(*p.rope, p.positions, num_q_heads, split.q);
  }

  void add(int64_t elems, const float* x, float* y) const override {
    for (int64_t i = 0; i < elems; ++i) y[i] += x[i];
  }

  void scale_rows(std::span<const float> factors, int64_t dim, float* x) const override {
    for (size_t r = 0; r < factors.size(); ++r) {
      float* row = x + static_cast<int64_t>(r) * dim;
      for (int64_t i = 0; i < dim; ++i) row[i] *= factors[r];
    }
  }

  void round_rows(DType dtype, int64_t rows, int64_t dim, float* x) const override {
    for (int64_t r = 0; r < rows; ++r) round_row(dtype, std::span(x + r * dim, static_cast<size_t>(dim)));
  }

  void cap_softly(float cap, int64_t elems, float* x) const override {
    for_row_blocks(elems, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] = cap * std::tanh(x[i] / cap);
    });
  }

  std::vector<std::optional<int32_t>> finite_argmax(int64_t rows, int64_t dim, const float* x) const override {
    std::vector<std::optional<int32_t>> best(static_cast<size_t>(rows));
    for_row_blocks(rows, dim, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const std::span row(x + r * dim, static_cast<size_t>(dim));
        if (!std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) continue;
        best[static_cast<size_t>(r)] = static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
      }
    });
    return best;
  }

  std::vector<double> target_losses(std::span<const int32_t> targets, int64_t dim, const float* x) const override {
    std::vector<double> losses(targets.size());
    for_row_blocks(std::ssize(targets), dim, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto row = static_cast<size_t>(r);
        losses[row] = target_loss(std::span(x + r * dim, static_cast<size_t>(dim)), targets[row]);
      }
    });
    return losses;
  }

 private:
  // RoPE in place on x [rows, num_heads, head_dim], one position a row.
  void rotate(const RopeTable& rope, std::span<const int32_t> positions, int64_t num_heads, float* x) const {
    const int64_t head_dim = rope.num_pairs() + rope.num_pairs();
    const auto rows = static_cast<int64_t>(positions.size());
    for_row_blocks(rows, num_heads * head_dim, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t position = positions[static_cast<size_t>(r)];
        const float* cosine = rope.cos_row(position);
        const float* sine = rope.sin_row(position);
        for (int64_t h = 0; h < num_heads; ++h) {
          cpu::rotate_head(rope.num_pairs(), cosine, sine, x + (r * num_heads + h) * head_dim);
        }
      }
    });
  }

  void split_qkv(const SplitQkvParams& p) const {
    const int64_t row_elems = p.q_dim + p.kv_dim + p.kv_dim;
    for_row_blocks(p.rows, row_elems, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = p.qkv + r * row_elems;
        copy_with_bias(p.q_dim, row, p.q_bias, p.q + r * p.q_dim);
        copy_with_bias(p.kv_dim, row + p.q_dim, nullptr, p.k + r * p.kv_dim);
        copy_with_bias(p.kv_dim, row + p.q_dim + p.kv_dim, p.v_bias, p.v + r * p.kv_dim);
      }
    });
  }

  Activations activations_;
  std::string name_;
  mutable cpu::Pool<cpu::LinearScratch> scratch_;
};

}  // namespace

std::shared_ptr<const ModelBackend> make_cpu_model_backend(Activations activations) {
  return std::make_shared<CpuModelBackend>(activations);
}

}  // namespace asymkv
