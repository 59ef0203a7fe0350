#include "asymkv/kernels/cuda/cuda_attention.h"

#include "asymkv/base/error.h"
#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cuda/cuda_support.h"
#include "asymkv/kernels/cuda/device_attend.h"
#include "asymkv/kernels/cuda/device_write.h"

namespace asymkv {
namespace {

class CudaAttention final : public AttentionBackend {
 public:
  explicit CudaAttention(std::shared_ptr<cuda::DeviceTables> tables)
      : tables_(std::move(tables)), write_(*tables_), attend_(*tables_) {}

  std::string_view name() const override { return cuda::kFamilyName; }

  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override {
    Support support = cuda::family_support(geometry, format, group, phase);
    if (!support.ok || phase == Phase::kWrite) return support;
    try {
      cuda::require_instance(cuda::choose_decode(geometry, format, group).config);
    } catch (const Error& e) {
      return {false, "", e.what()};
    }
    return support;
  }

  KvMemory cache_memory() const override { return KvMemory::kDevice; }

  void write_kv(const WriteKvParams& params) const override {
    if (write_.knows(params)) {
      check_write_layer(params, KvMemory::kDevice);
    } else {
      check_write_params(params, KvMemory::kDevice);
      require_write_support(*this, params);
    }
    write_.run(params);
  }

  void attend(const AttendParams& params) const override {
    if (attend_.knows(params)) {
      check_attend_layer(params, KvMemory::kDevice);
    } else {
      check_attend_params(params, KvMemory::kDevice);
      require_attend_support(*this, params);
    }
    attend_.run(params);
  }

  void keep_pass(uint64_t pass) const override {
    write_.keep_pass(pass);
    attend_.keep_pass(pass);
  }
  void forget_pass(uint64_t pass) const override {
    write_.forget_pass(pass);
    attend_.forget_pass(pass);
  }
  bool replan(const WriteKvParams& params) const override {
    check_write_params(params, KvMemory::kDevice);
    return write_.replan(params);
  }
  bool replan(const AttendParams& params) const override {
    check_attend_params(params, KvMemory::kDevice);
    return attend_.replan(params);
  }
  void replayed(const WriteKvParams& params, int64_t /*layers*/) const override { write_.replayed(params); }
  void replayed(const AttendParams& /*params*/, int64_t /*layers*/) const override {}
  void finish() const override { write_.finish(); }

 private:
  std::shared_ptr<cuda::DeviceTables> tables_;
  mutable cuda::DeviceWrite write_;
  mutable cuda::DeviceAttend attend_;
};

}  // namespace

std::string cuda_attention_refusal() {
  return cuda::family_refusal(list_devices(), cuda::decode_instance_table().size());
}

std::unique_ptr<AttentionBackend> make_cuda_attention(std::shared_ptr<cuda::DeviceTables> tables) {
  const std::string refusal = cuda_attention_refusal();
  if (!refusal.empty()) throw_unsupported("{}", refusal);
  return std::make_unique<CudaAttention>(std::move(tables));
}

}  // namespace asymkv
