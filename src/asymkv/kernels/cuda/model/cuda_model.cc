#include "asymkv/kernels/cuda/model/cuda_model.h"

#include <cuda_runtime_api.h>

#include <limits>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/model/draw_kernel.h"

namespace asymkv::cuda {

namespace {

cudaMemPool_t default_pool() {
  cudaMemPool_t pool = nullptr;
  ASYMKV_CUDA(cudaDeviceGetDefaultMemPool(&pool, require_device().ordinal));
  return pool;
}

}  // namespace

CudaModel::CudaModel(Activations activations, std::shared_ptr<DeviceTables> tables)
    : tables_(std::move(tables)), linear_(activations) {
  // Activations come and go with every pass: their memory stays with the process.
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  ASYMKV_CUDA(cudaMemPoolSetAttribute(default_pool(), cudaMemPoolAttrReleaseThreshold, &keep));
}

std::unique_ptr<RecordedWork> CudaModel::record(const std::function<void()>& work) const {
  return std::make_unique<StreamRecording>(work);
}

void CudaModel::release_unused() const {
  ASYMKV_CUDA(cudaDeviceSynchronize());
  ASYMKV_CUDA(cudaMemPoolTrimTo(default_pool(), 0));
}

std::string_view CudaModel::name() const {
  return linear_.rounds() ? "cuda-cublaslt-a16" : "cuda-cublaslt-a32";
}

FloatArray CudaModel::allocate(int64_t elems) const {
  return {std::static_pointer_cast<float>(stream_memory(elems * static_cast<int64_t>(sizeof(float)))), elems};
}

void CudaModel::upload(std::span<const float> from, float* to) const {
  ASYMKV_CUDA(cudaMemcpy(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice));
}

void CudaModel::download(const float* from, std::span<float> to) const {
  ASYMKV_CUDA(cudaMemcpy(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost));
}

void CudaModel::place(WeightMatrix& matrix, bool keep_host) const {
  matrix.set_placed(linear_.place(matrix, keep_host), keep_host);
}

void CudaModel::place_rows(WeightMatrix& matrix) const {
  matrix.set_placed(linear_.place_rows(matrix), true);
}

void CudaModel::embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const {
  EmbedParams params;
  if (matrix.placed() != nullptr && linear_.keeps(matrix)) {
    params = {CudaLinear::data(matrix), operand_dtype(), tables_->of(rows), std::ssize(rows), matrix.in()};
  } else if (const void* half_rows = CudaLinear::half_rows(matrix); half_rows != nullptr) {
    params = {half_rows, DType::kF16, tables_->of(rows), std::ssize(rows), matrix.in()};
  } else {
    WidenedRows* widened = CudaLinear::widened_rows(matrix);
    const auto places = widened == nullptr ? std::nullopt : widened->find(matrix, rows);
    if (!places) return ModelBackend::embed(matrix, rows, scale, x);
    params = {widened->data(), DType::kF32, tables_->of(*places), std::ssize(rows), matrix.in()};
  }
  params.scale = scale;
  params.x = x;
  launch_embed(params);
  check_launches();
}

void CudaModel::linear(const LinearParams& params) const {
  linear_.run(params);
  if (params.bias != nullptr) launch_add_bias(params.rows, params.w->rows(), params.bias, params.y);
  check_launches();
}

void CudaModel::rms_norm(const RmsNormParams& params) const {
  launch_rms_norm(params, linear_.rounds() && params.y_is_operand);
  check_launches();
}

void CudaModel::silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const {
  launch_gate_mul(Gate::kSilu, {rows, dim, gate_up, y, linear_.rounds()});
  check_launches();
}

void CudaModel::gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const {
  launch_gate_mul(Gate::kGelu, {rows, dim, gate_up, y, linear_.rounds()});
  check_launches();
}

void CudaModel::prepare_qkv(const PrepareQkvParams& params) const {
  ASYMKV_CHECK(std::ssize(params.positions) == params.split.rows, "{} positions of {} rows", params.positions.size(),
               params.split.rows);
  for (const int32_t position : params.positions) params.rope->cos_row(position);  // throws outside the table
  const DeviceTables::Rope tables = tables_->rope(*params.rope);
  ASYMKV_CHECK(params.row_dtype == DType::kF32 || params.row_dtype == operand_dtype(), "rows of {}",
               dtype_name(params.row_dtype));
  ASYMKV_CHECK(params.rope->num_pairs() % 2 == 0 && params.rope->num_pairs() <= 128, "heads of {} channels",
               2 * params.rope->num_pairs());
  const int32_t* positions = params.placed_positions;
  if (positions == nullptr) positions = tables_->of(params.positions);
  launch_prepare_qkv(params, {tables.cosines, tables.sines, positions, params.rope->num_pairs()});
  check_launches();
}

void CudaModel::add(int64_t elems, const float* x, float* y) const {
  launch_add(elems, x, y);
  check_launches();
}

void CudaModel::scale_rows(std::span<const float> factors, int64_t dim, float* x) const {
  launch_scale_rows(static_cast<int64_t>(factors.size()), dim, tables_->of(factors), x);
  check_launches();
}

void CudaModel::round_rows(DType dtype, int64_t rows, int64_t dim, float* x) const {
  if (dtype != DType::kE4M3) throw_unsupported("{} rounds rows to e4m3, not to {}", name(), dtype_name(dtype));
  launch_round_e4m3(rows, dim, x);
  check_launches();
}

void CudaModel::cap_softly(float cap, int64_t elems, float* x) const {
  launch_cap_softly(cap, elems, x);
  check_launches();
}

std::vector<std::optional<int32_t>> CudaModel::finite_argmax(int64_t rows, int64_t dim, const float* x) const {
  std::vector<unsigned long long> ranks(static_cast<size_t>(rows));
  const std::shared_ptr<void> on_device = stream_copy(std::as_bytes(std::span(ranks)));
  launch_finite_argmax(rows, dim, x, static_cast<unsigned long long*>(on_device.get()));
  check_launches();
  if (rows > 0) ASYMKV_CUDA(cudaMemcpy(ranks.data(), on_device.get(), ranks.size() * 8, cudaMemcpyDeviceToHost));
  std::vector<std::optional<int32_t>> best;
  for (const unsigned long long rank : ranks) {
    best.push_back(rank == kNotFinite ? std::nullopt
                                      : std::optional(static_cast<int32_t>(~static_cast<uint32_t>(rank))));
  }
  return best;
}

std::vector<std::optional<int32_t>> CudaModel::draw_tokens(const SamplingLaw& law, std::span<const double> uniforms,
                                                           int64_t dim, const float* x) const {
  if (law.temperature == 0.0) return finite_argmax(std::ssize(uniforms), dim, x);
  std::vector<int32_t> drawn(uniforms.size());
  const std::shared_ptr<void> on_device = stream_copy(std::as_bytes(std::span(drawn)));
  const std::shared_ptr<void> numbers = stream_copy(std::as_bytes(uniforms));
  auto* tokens = static_cast<int32_t*>(on_device.get());
  const int sorted =
      launch_draw({std::ssize(uniforms), dim, x, static_cast<const double*>(numbers.get()), tokens, law});
  cuda_check(static_cast<cudaError_t>(sorted), "sorting logits");
  check_launches();
  const size_t bytes = std::span(drawn).size_bytes();
  if (bytes > 0) ASYMKV_CUDA(cudaMemcpy(drawn.data(), tokens, bytes, cudaMemcpyDeviceToHost));
  std::vector<std::optional<int32_t>> found;
  for (const int32_t token : drawn) found.push_back(token == kNoToken ? std::nullopt : std::optional(token));
  return found;
}

std::vector<double> CudaModel::target_losses(std::span<const int32_t> targets, int64_t dim, const float* x) const {
  const auto rows = static_cast<int64_t>(targets.size());
  const DeviceBuffer on_device(rows * static_cast<int64_t>(sizeof(double)));
  launch_target_losses(rows, dim, x, tables_->of(targets), on_device.as<double>());
  check_launches();
  return to_host<double>(on_device, rows);
}

}  // namespace asymkv::cuda
