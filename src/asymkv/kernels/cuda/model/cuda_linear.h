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
  // params point to device memory; the bias is not added.
  void run(const LinearParams& params);

 private:
  struct Product;  // descriptors and algorithm of one shape
  const Product& product(const LinearParams& params);

  Activations activations_;
  void* handle_ = nullptr;  // cublasLtHandle_t
  DeviceBuffer workspace_;
  std::map<std::tuple<int64_t, int64_t, int64_t, bool>, std::unique_ptr<Product>> products_;  // rows, in, out, adds
};

}  // namespace asymkv::cuda
