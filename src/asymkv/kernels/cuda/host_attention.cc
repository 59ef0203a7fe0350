#include "asymkv/kernels/cuda/host_attention.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cuda/cuda_attention.h"
#include "asymkv/kernels/cuda/host_pages.h"

namespace asymkv::cuda::testing {
namespace {

DeviceBuffer floats(const float* from, int64_t elems) {
  return from == nullptr ? DeviceBuffer() : to_device(std::span(from, static_cast<size_t>(elems)));
}

void take_back(const DeviceBuffer& from, float* to, int64_t elems) {
  if (to != nullptr) from.download(std::as_writable_bytes(std::span(to, static_cast<size_t>(elems))));
}

bool holds(DType dtype, const float* rows, int64_t elems) {
  return std::all_of(rows, rows + elems, [&](float x) { return std::isnan(x) || round_to(dtype, x) == x; });
}

// The 16-bit type that holds every fresh row exactly; F32 if none does.
DType fresh_dtype_of(const AttendParams& params) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    if (std::ranges::all_of(params.sequences, [&](const AttendSequence& s) {
          const int64_t elems = s.num_fresh * params.num_kv_heads * params.k_head_dim;
          return holds(dtype, s.fresh_k, elems) && holds(dtype, s.fresh_v, elems);
        })) {
      return dtype;
    }
  }
  return DType::kF32;
}

class HostAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return device_->name(); }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override {
    return device_->supports(geometry, format, group, phase);
  }

  void write_kv(const WriteKvParams& params) const override {
    check_write_params(params);
    const int64_t elems = params.num_tokens * params.geometry.num_kv_heads * params.geometry.k_head_dim;
    const DeviceBuffer k = floats(params.k, elems), v = floats(params.v, elems);
    const DeviceBuffer bias = floats(params.k_bias, params.geometry.num_kv_heads * params.geometry.k_head_dim);
    const DeviceBuffer fresh_k = floats(params.fresh_k, elems), fresh_v = floats(params.fresh_v, elems);
    std::deque<DevicePages> pages;
    std::deque<std::vector<int64_t>> slots;
    std::vector<WriteTarget> targets;
    for (const WriteTarget& target : params.targets) {
      DevicePages& own = pages.emplace_back(target.cache);
      const int64_t page_size = target.cache.layout->geometry().page_size;
      std::vector<int64_t>& own_slots = slots.emplace_back();
      for (const int64_t slot : target.slots) {
        own_slots.push_back(slot < 0 ? -1 : own.add(slot / page_size) * page_size + slot % page_size);
      }
      own.upload();
      targets.push_back({own.device_view(), own_slots, target.k_counters, target.v_counters});
    }
    WriteKvParams call = params;
    call.k = k.as<float>();
    call.v = v.as<float>();
    call.k_bias = bias.as<float>();
    call.fresh_k = fresh_k.as<float>();
    call.fresh_v = fresh_v.as<float>();
    call.targets = targets;
    call.pass = 0;  // pages have other places in every call
    device_->write_kv(call);
    device_->finish();
    for (DevicePages& own : pages) own.download();
    take_back(fresh_k, params.fresh_k, elems);
    take_back(fresh_v, params.fresh_v, elems);
  }

  void attend(const AttendParams& params) const override {
    check_attend_params(params);
    int64_t rows = 0;
    for (const AttendSequence& s : params.sequences) rows = std::max(rows, s.query_row + s.num_queries);
    const int64_t heads = rows * params.num_q_heads;
    const DeviceBuffer q = floats(params.q, heads * params.k_head_dim);
    const DeviceBuffer out = floats(params.out, heads * params.v_head_dim), lse = floats(params.lse, heads);
    const DeviceBuffer sinks = floats(params.sinks, params.num_q_heads);
    Caches caches;
    std::deque<DeviceBuffer> fresh;
    std::vector<AttendSequence> sequences;
    for (const AttendSequence& s : params.sequences) {
      AttendSequence moved = s;
      if (s.stored_len > 0) moved.pages = caches.add(s);
      const int64_t elems = s.num_fresh * params.num_kv_heads * params.k_head_dim;
      moved.fresh_k = fresh.emplace_back(floats(s.fresh_k, elems)).as<float>();
      moved.fresh_v = fresh.emplace_back(floats(s.fresh_v, elems)).as<float>();
      sequences.push_back(moved);
    }
    for (AttendSequence& s : sequences) {
      if (s.stored_len > 0) s.cache = caches.device_view(s.cache.k_plane);
    }
    AttendParams call = params;
    call.q = q.as<float>();
    call.out = out.as<float>();
    call.lse = lse.as<float>();
    call.sinks = sinks.as<float>();
    call.fresh_dtype = fresh_dtype_of(params);
    call.sequences = sequences;
    call.pass = 0;
    device_->attend(call);
    take_back(out, params.out, heads * params.v_head_dim);
    take_back(lse, params.lse, heads);
  }

 private:
  // The touched pages of each cache of a call, and each sequence's ids among them.
  class Caches {
   public:
    std::span<const PageId> add(const AttendSequence& s) {
      DevicePages& own = pages_.try_emplace(s.cache.k_plane, s.cache).first->second;
      std::vector<PageId>& ids = ids_.emplace_back();
      for (const PageId page : s.pages.first(static_cast<size_t>(s.cache.layout->pages_for(s.stored_len)))) {
        ids.push_back(PageId{own.add(page_index(page))});
      }
      return ids;
    }
    KvLayerView device_view(const std::byte* k_plane) {
      DevicePages& own = pages_.at(k_plane);
      if (own.blocks().bytes() == 0) own.upload();
      return own.device_view();
    }

   private:
    std::map<const std::byte*, DevicePages> pages_;
    std::deque<std::vector<PageId>> ids_;
  };

  std::unique_ptr<AttentionBackend> device_ = make_cuda_attention(std::make_shared<DeviceTables>());
};

}  // namespace

std::unique_ptr<AttentionBackend> make_host_attention() {
  return std::make_unique<HostAttention>();
}

}  // namespace asymkv::cuda::testing
