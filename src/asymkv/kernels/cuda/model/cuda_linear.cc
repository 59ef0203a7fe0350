#include "asymkv/kernels/cuda/model/cuda_linear.h"

#include <cublasLt.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what cuBLAS recommends on Hopper
constexpr int64_t kStagingElems = int64_t{16} << 20;    // of a matrix on its way to the device
constexpr size_t kMaxProducts = 1024;

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  throw_error(code, "{} failed: {}", call, cublasLtGetStatusString(status));
}
#define ASYMKV_CUBLAS(call) check((call), #call)

// Rows of activations up to which codes are multiplied as they are: each 32 read them once more, and so many read as
// much as the matrix widened to BF16, written and read again. By bytes, not measured.
constexpr int64_t kMostInt4Rows = 128;

bool is_all(const WeightMatrix& matrix, GgmlType type) {
  return std::ranges::all_of(matrix.parts(), [type](const WeightPart& part) { return part.type == type; });
}

// Rows of 16 bits.
DeviceBuffer as_stored(const WeightMatrix& matrix) {
  DeviceBuffer data(matrix.rows() * matrix.in() * dtype_bytes(DType::kBF16));
  for (const WeightPart& part : matrix.parts()) {
    const auto bytes = static_cast<size_t>(part.num_rows * part.row_bytes);
    data.upload({part.data, bytes}, part.first_row * part.row_bytes);
  }
  return data;
}

}  // namespace

struct DevicePlaced : PlacedWeights {
  int64_t bytes() const override {
    return product_bytes() + half_rows.bytes() + (widened == nullptr ? 0 : widened->bytes());
  }
  // Where rows are looked up and what products read, if anything, is another form of them: one of the two.
  DeviceBuffer half_rows;  // FP16
  std::unique_ptr<WidenedRows> widened;

  void keep_rows(const WeightMatrix& matrix) {
    if (is_all(matrix, GgmlType::kF16)) {
      half_rows = as_stored(matrix);
    } else {
      widened = std::make_unique<WidenedRows>(matrix);
    }
  }
};

namespace {

struct DeviceWeights final : DevicePlaced {
  int64_t product_bytes() const override { return data.bytes(); }
  DeviceBuffer data;  // [out, in]; none: rows are only looked up
};

struct DeviceInt4 final : DevicePlaced {
  explicit DeviceInt4(const Int4Weights& from)
      : codes(to_device(std::span(from.codes))), scales(to_device(std::span(from.scales))) {
    matrix = {codes.as<uint32_t>(), scales.as<Int4Scale>(), from.rows, from.padded_rows(), from.in, from.group};
  }
  int64_t product_bytes() const override { return codes.bytes() + scales.bytes(); }
  DeviceBuffer codes, scales;
  Int4Matrix matrix;
};

struct Layout {
  Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    ASYMKV_CUBLAS(
        cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows));
  }
  ~Layout() { (void)cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t handle = nullptr;
};

struct Operation {
  Operation() {
    ASYMKV_CUBLAS(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    ASYMKV_CUBLAS(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  }
  ~Operation() { (void)cublasLtMatmulDescDestroy(handle); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  cublasLtMatmulDesc_t handle = nullptr;
};

struct Preference {
  Preference() {
    ASYMKV_CUBLAS(cublasLtMatmulPreferenceCreate(&handle));
    const auto bytes = static_cast<uint64_t>(kWorkspaceBytes);
    ASYMKV_CUBLAS(
        cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t handle = nullptr;
};

}  // namespace

// cuBLASLt reads columns first: W [out, in] is its [in, out], transposed by the product; x and y likewise.
struct CudaLinear::Product {
  Product(cublasLtHandle_t library, cudaDataType_t type, const LinearParams& params)
      : w(type, params.w->in(), params.w->rows()),
        x(type, params.w->in(), params.rows),
        y(params.y_is_operand ? type : CUDA_R_32F, params.w->rows(), params.rows) {
    const Preference preference;
    int found = 0;
    ASYMKV_CUBLAS(cublasLtMatmulAlgoGetHeuristic(library, operation.handle, w.handle, x.handle, y.handle, y.handle,
                                                 preference.handle, 1, &chosen, &found));
    if (found == 0) {
      throw_unsupported("cuBLASLt has no product of {} rows with a {} x {} matrix", params.rows, params.w->rows(),
                        params.w->in());
    }
  }
  Operation operation;
  Layout w, x, y;
  cublasLtMatmulHeuristicResult_t chosen{};
};

CudaLinear::CudaLinear(Activations activations) : activations_(activations), workspace_(kWorkspaceBytes) {
  cublasLtHandle_t handle = nullptr;
  ASYMKV_CUBLAS(cublasLtCreate(&handle));
  handle_ = handle;
}

CudaLinear::~CudaLinear() {
  (void)cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

std::shared_ptr<const PlacedWeights> CudaLinear::place(const WeightMatrix& matrix, bool looks_up) {
  const std::shared_ptr<DevicePlaced> placed = place_products(matrix);
  if (looks_up && !keeps(matrix)) placed->keep_rows(matrix);
  return placed;
}

std::shared_ptr<DevicePlaced> CudaLinear::place_products(const WeightMatrix& matrix) {
  const bool narrow = rounds();
  if (narrow) {
    if (const auto packed = pack_int4(matrix)) return place_int4(*packed);
  }
  const int64_t elem_bytes = narrow ? dtype_bytes(DType::kBF16) : dtype_bytes(DType::kF32);
  auto placed = std::make_shared<DeviceWeights>();
  if (narrow && keeps(matrix)) {  // nothing to round
    placed->data = as_stored(matrix);
    return placed;
  }
  placed->data = DeviceBuffer(matrix.rows() * matrix.in() * elem_bytes);
  const int64_t step = std::max<int64_t>(1, kStagingElems / matrix.in());
  for (int64_t begin = 0; begin < matrix.rows(); begin += step) {
    std::vector<int32_t> ids(static_cast<size_t>(std::min(step, matrix.rows() - begin)));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(begin));
    const std::vector<float> rows = matrix.widen_rows(ids);
    const int64_t offset = begin * matrix.in() * elem_bytes;
    if (!narrow) {
      placed->data.upload(std::as_bytes(std::span(rows)), offset);
      continue;
    }
    std::vector<uint16_t> rounded(rows.size());
    std::ranges::transform(rows, rounded.begin(), f32_to_bf16);
    placed->data.upload(std::as_bytes(std::span(rounded)), offset);
  }
  return placed;
}

std::shared_ptr<DevicePlaced> CudaLinear::place_int4(const Int4Weights& packed) {
  auto placed = std::make_shared<DeviceInt4>(packed);
  const int64_t bytes = packed.rows * packed.in * dtype_bytes(DType::kBF16);
  if (wide_ == nullptr || wide_->bytes() < bytes) {
    wide_.reset();  // before its successor takes memory
    wide_ = std::make_shared<const DeviceBuffer>(bytes);
  }
  return placed;
}

std::shared_ptr<const PlacedWeights> CudaLinear::place_rows(const WeightMatrix& matrix) {
  if (keeps(matrix)) return place_products(matrix);
  auto placed = std::make_shared<DeviceWeights>();
  placed->keep_rows(matrix);
  return placed;
}

const void* CudaLinear::half_rows(const WeightMatrix& matrix) {
  const auto* placed = dynamic_cast<const DevicePlaced*>(matrix.placed());
  return placed == nullptr || placed->half_rows.bytes() == 0 ? nullptr : placed->half_rows.data();
}

WidenedRows* CudaLinear::widened_rows(const WeightMatrix& matrix) {
  const auto* placed = dynamic_cast<const DevicePlaced*>(matrix.placed());
  return placed == nullptr ? nullptr : placed->widened.get();
}

bool CudaLinear::keeps(const WeightMatrix& matrix) const {
  return !rounds() || is_all(matrix, GgmlType::kBF16);
}

const void* CudaLinear::data(const WeightMatrix& matrix) {
  const auto* weights = dynamic_cast<const DeviceWeights*>(matrix.placed());
  ASYMKV_CHECK(weights != nullptr && weights->data.bytes() > 0, "a {} x {} matrix that was not placed for products",
               matrix.rows(), matrix.in());
  return weights->data.data();
}

const CudaLinear::Product& CudaLinear::product(const LinearParams& params) {
  if (products_.size() >= kMaxProducts) products_.clear();
  std::unique_ptr<Product>& known =
      products_[{params.rows, params.w->in(), params.w->rows(), params.accumulate, params.y_is_operand}];
  const cudaDataType_t type = rounds() ? CUDA_R_16BF : CUDA_R_32F;
  if (known == nullptr) known = std::make_unique<Product>(static_cast<cublasLtHandle_t>(handle_), type, params);
  return *known;
}

void CudaLinear::run(const LinearParams& params) {
  if (params.rows == 0) return;
  ASYMKV_CHECK(!params.y_is_operand || (params.bias == nullptr && !params.accumulate), "an operand with more in it");
  const void* x = params.x;
  std::shared_ptr<void> rounded;
  if (rounds() && !params.x_is_operand) {
    rounded = stream_memory(params.rows * params.w->in() * dtype_bytes(DType::kBF16));
    launch_narrow({params.x, rounded.get(), nullptr, params.rows, params.w->in(), true}, current_stream());
    x = rounded.get();
  }
  const auto* int4 = dynamic_cast<const DeviceInt4*>(params.w->placed());
  return int4 != nullptr ? run_int4(params, int4->matrix, x) : run_wide(params, data(*params.w), x);
}

// x: BF16.
void CudaLinear::run_int4(const LinearParams& params, const Int4Matrix& matrix, const void* x) {
  if (params.rows > kMostInt4Rows) {
    keep_for_recording(wide_);
    launch_int4_widen(matrix, wide_->data());
    return run_wide(params, wide_->data(), x);
  }
  const int64_t y_bytes = dtype_bytes(params.y_is_operand ? DType::kBF16 : DType::kF32);
  for (int64_t begin = 0; begin < params.rows; begin += kInt4ProductRows) {
    Int4ProductParams piece{matrix};
    piece.num_rows = std::min(kInt4ProductRows, params.rows - begin);
    piece.x = static_cast<const std::byte*>(x) + begin * matrix.in * dtype_bytes(DType::kBF16);
    piece.y = reinterpret_cast<std::byte*>(params.y) + begin * matrix.rows * y_bytes;
    piece.y_is_bf16 = params.y_is_operand;
    piece.accumulate = params.accumulate;
    launch_int4_product(piece);
  }
}

void CudaLinear::run_wide(const LinearParams& params, const void* weights, const void* x) {
  const Product& p = product(params);
  const float one = 1.0F;
  const float beta = params.accumulate ? 1.0F : 0.0F;
  ASYMKV_CUBLAS(cublasLtMatmul(static_cast<cublasLtHandle_t>(handle_), p.operation.handle, &one, weights, p.w.handle, x,
                               p.x.handle, &beta, params.y, p.y.handle, params.y, p.y.handle, &p.chosen.algo,
                               workspace_.data(), static_cast<size_t>(workspace_.bytes()),
                               static_cast<cudaStream_t>(current_stream())));
}

}  // namespace asymkv::cuda
