#pragma once

#include <memory>

#include "asymkv/ops/model_ops.h"

namespace asymkv {

// FP32 matrix products by oneDNN's SGEMM, everything else by Highway; "cpu-onednn".
std::shared_ptr<const ModelBackend> make_cpu_model_backend();

}  // namespace asymkv
