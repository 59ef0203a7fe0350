#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/model/int4_product.h"
#include "asymkv/kernels/cuda/model/widened_rows.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv::cuda {

struct DevicePlaced;

// Matrix products through cuBLASLt on the device's default stream: the same call gives the same bits; another number of
// rows may use another algorithm.
class CudaLinear {
 public:
  explicit CudaLinear(Activations activations);
  ~CudaLinear();
  CudaLinear(const CudaLinear&) = delete;
  CudaLinear& operator=(const CudaLinear&) = delete;

  // Keeps the matrix in device memory: 4-bit codes as they are where products round (int4_weights.h), others exactly
  // widened and rounded to the products' type.
  // looks_up: rows will be asked for, too (half_rows, widened_rows).
  std::shared_ptr<const PlacedWeights> place(const WeightMatrix& matrix, bool looks_up);
  // For looking up rows alone.
  std::shared_ptr<const PlacedWeights> place_rows(const WeightMatrix& matrix);
  // Whether place() keeps every value of this matrix in rows of the products' type.
  bool keeps(const WeightMatrix& matrix) const;
  bool rounds() const { return activations_ == Activations::k16; }  // then operands are BF16, else FP32
  int64_t workspace_bytes() const { return workspace_.bytes() + (wide_ == nullptr ? 0 : wide_->bytes()); }
  // Exact rows of a placed matrix that was not kept: all of them in FP16, or those asked for. Null for others.
  static const void* half_rows(const WeightMatrix& matrix);
  static WidenedRows* widened_rows(const WeightMatrix& matrix);
  // A placed matrix, [rows, in] of the products' type.
  static const void* data(const WeightMatrix& matrix);
  // params point to device memory; the bias is not added.
  void run(const LinearParams& params);

 private:
  struct Product;  // descriptors and algorithm of one shape
  std::shared_ptr<DevicePlaced> place_products(const WeightMatrix& matrix);
  std::shared_ptr<DevicePlaced> place_int4(const Int4Weights& packed);
  void run_int4(const LinearParams& params, const Int4Matrix& matrix, const void* x);
  void run_wide(const LinearParams& params, const void* weights, const void* x);
  const Product& product(const LinearParams& params);

  Activations activations_;
  void* handle_ = nullptr;  // cublasLtHandle_t
  DeviceBuffer workspace_;
  std::shared_ptr<const DeviceBuffer> wide_;  // room for the largest matrix of 4-bit codes in BF16
  // By rows, in, out, whether it adds, whether its result is an operand.
  std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool>, std::unique_ptr<Product>> products_;
};

}  // namespace asymkv::cuda
