#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "asymkv/device/device.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv::cuda {

// Matrix products through cuBLASLt on the device's default stream: the same call gives the same bits; another number of
// rows may use another algorithm.
class CudaLinear {
 public:
  explicit CudaLinear(Activations activations);
  ~CudaLinear();
  CudaLinear(const CudaLinear&) = delete;
  CudaLinear& operator=(const CudaLinear&) = delete;

  // Widens the matrix exactly, rounds it to the products' type and keeps it in device memory.
  std::shared_ptr<const PlacedWeights> place(const WeightMatrix& matrix) const;
  // Whether place() keeps every value of this matrix.
  bool keeps(const WeightMatrix& matrix) const;
  bool rounds() const { return activations_ == Activations::k16; }  // then operands are BF16, else FP32
  int64_t workspace_bytes() const { return workspace_.bytes(); }
  // A placed matrix, [rows, in] of the products' type.
  static const void* data(const WeightMatrix& matrix);
  // params point to device memory; the bias is not added.
  void run(const LinearParams& params);

 private:
  struct Product;  // descriptors and algorithm of one shape
  const Product& product(const LinearParams& params);

  Activations activations_;
  void* handle_ = nullptr;  // cublasLtHandle_t
  DeviceBuffer workspace_;
  // By rows, in, out, whether it adds, whether its result is an operand.
  std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool>, std::unique_ptr<Product>> products_;
};

}  // namespace asymkv::cuda
