#include "asymkv/kernels/cuda/host_attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/host_pages.h"

namespace asymkv::cuda {
namespace {

// Results of one sequence so far: normalised outputs and the natural logarithms of their softmax denominators.
struct Result {
  std::vector<double> out;  // [query][q head][head_dim]
  std::vector<double> lse;  // [query][q head]

  void join(size_t row, double other_lse, const float* other_out, size_t head_dim) {
    if (other_lse == -std::numeric_limits<double>::infinity()) return;
    const double top = std::max(lse[row], other_lse);
    const double mine = std::exp(lse[row] - top);
    const double theirs = std::exp(other_lse - top);
    for (size_t i = 0; i < head_dim; ++i) {
      double& x = out[row * head_dim + i];
      const double y = other_out == nullptr ? 0.0 : static_cast<double>(other_out[i]);
      x = (mine * x + theirs * y) / (mine + theirs);
    }
    lse[row] = top + std::log(mine + theirs);
  }
};

// The sequences of one launch, in one cache.
struct Launch {
  KvGeometry geometry;
  KvFormat format;
  const KeyTransform* transform = nullptr;
  const DeviceBuffer* blocks = nullptr;
  const DeviceBuffer* scales = nullptr;
  const float* fixed_scales = nullptr;
  std::vector<size_t> sequences;
  std::vector<int32_t> table;
  DecodeBatch batch;
};

class HostAttend {
 public:
  explicit HostAttend(const AttendParams& params) : params_(params), results_(params.sequences.size()) {
    for (size_t i = 0; i < results_.size(); ++i) {
      const auto rows = static_cast<size_t>(params.sequences[i].num_queries * params.num_q_heads);
      results_[i].out.assign(rows * head_dim(), 0.0);
      results_[i].lse.assign(rows, -std::numeric_limits<double>::infinity());
    }
  }

  void run() {
    std::vector<bool> done(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      const AttendSequence& s = params_.sequences[i];
      if (done[i] || s.stored_len == 0 || s.num_queries == 0) continue;
      std::vector<size_t> same;  // sequences in the same cache
      for (size_t j = i; j < results_.size(); ++j) {
        const AttendSequence& other = params_.sequences[j];
        if (other.stored_len == 0 || other.num_queries == 0 || other.cache.k_plane != s.cache.k_plane) continue;
        same.push_back(j);
        done[j] = true;
      }
      attend_stored(same);
    }
    attend_fresh();
    write_results();
  }

 private:
  size_t head_dim() const { return static_cast<size_t>(params_.k_head_dim); }

  Launch make_launch(const KvGeometry& geometry, const KvFormat& format) const {
    Launch launch;
    launch.geometry = geometry;
    launch.format = format;
    launch.batch.num_kv_heads = static_cast<int32_t>(params_.num_kv_heads);
    launch.batch.group = static_cast<int32_t>(params_.num_q_heads / params_.num_kv_heads);
    launch.batch.window = static_cast<int32_t>(params_.window);
    launch.batch.page_size = static_cast<int32_t>(geometry.page_size);
    return launch;
  }
  static void add(Launch& launch, size_t sequence, int64_t num_keys, int64_t num_queries, int64_t query_pos) {
    launch.sequences.push_back(sequence);
    launch.batch.seq_lens.push_back(static_cast<int32_t>(num_keys));
    launch.batch.page_rows.push_back(static_cast<int32_t>(launch.table.size()));
    launch.batch.num_queries.push_back(static_cast<int32_t>(num_queries));
    launch.batch.query_pos.push_back(static_cast<int32_t>(query_pos));
  }

  void attend_stored(const std::vector<size_t>& sequences) {
    const KvLayerView& view = params_.sequences[sequences.front()].cache;
    Launch launch = make_launch(view.layout->geometry(), view.layout->format());
    DevicePages pages(view);
    for (const size_t i : sequences) {
      const AttendSequence& s = params_.sequences[i];
      add(launch, i, s.stored_len, s.num_queries, s.query_pos);
      for (int64_t p = 0; p < view.layout->pages_for(s.stored_len); ++p)
        launch.table.push_back(pages.add(page_index(s.pages[static_cast<size_t>(p)])));
    }
    pages.upload();
    launch.transform = view.transform;
    launch.blocks = &pages.blocks();
    launch.scales = &pages.scales();
    launch.fixed_scales = pages.fixed_scales();
    run(launch);
  }

  // The 16-bit type that holds every fresh row exactly.
  DType fresh_dtype() const {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const auto holds = [&](const float* rows, int64_t elems) {
        return std::all_of(rows, rows + elems, [&](float x) { return std::isnan(x) || round_to(dtype, x) == x; });
      };
      if (std::ranges::all_of(params_.sequences, [&](const AttendSequence& s) {
            const int64_t elems = s.num_fresh * params_.num_kv_heads * params_.k_head_dim;
            return holds(s.fresh_k, elems) && holds(s.fresh_v, elems);
          })) {
        return dtype;
      }
    }
    throw_unsupported("fresh keys and values are exact neither in BF16 nor in FP16: the CUDA kernels read 16-bit rows");
  }

  void attend_fresh() {
    int64_t num_pages = 0;
    for (const AttendSequence& s : params_.sequences) num_pages += (s.num_fresh + kPageSize - 1) / kPageSize;
    if (num_pages == 0) return;
    const DType dtype = fresh_dtype();
    Launch launch = make_launch({params_.num_kv_heads, params_.k_head_dim, params_.v_head_dim, kPageSize},
                                {{.dtype = dtype}, {.dtype = dtype}});
    const TiledLayout tiled(launch.geometry, launch.format);
    std::vector<std::byte> host(static_cast<size_t>(tiled.plane_bytes(num_pages)), std::byte{0xff});
    for (size_t i = 0; i < params_.sequences.size(); ++i) {
      const AttendSequence& s = params_.sequences[i];
      if (s.num_fresh == 0 || s.num_queries == 0) continue;
      add(launch, i, s.num_fresh, s.num_queries, 0);  // positions count from the first fresh key
      const auto first_page = static_cast<int64_t>(launch.table.size());
      for (int64_t t = 0; t < s.num_fresh; t += kPageSize)
        launch.table.push_back(static_cast<int32_t>(launch.table.size()));
      copy_rows(s, dtype, tiled, first_page, host);
    }
    if (launch.sequences.empty()) return;
    const DeviceBuffer blocks = to_device(host), no_scales;
    launch.blocks = &blocks;
    launch.scales = &no_scales;
    run(launch);
  }

  void copy_rows(const AttendSequence& s, DType dtype, const TiledLayout& tiled, int64_t first_page,
                 std::vector<std::byte>& host) const {
    for (int64_t i = 0; i < s.num_fresh * params_.num_kv_heads * params_.k_head_dim; ++i) {
      const int64_t channel = i % params_.k_head_dim;
      const int64_t head = i / params_.k_head_dim % params_.num_kv_heads;
      const int64_t token = i / params_.k_head_dim / params_.num_kv_heads;
      const int64_t page = first_page + token / kPageSize;
      const auto put = [&](int64_t offset, float x) {
        const uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
        std::memcpy(host.data() + offset, &bits, sizeof(bits));
      };
      put(tiled.k_offset_bytes(page, head, token % kPageSize, channel), s.fresh_k[i]);
      put(tiled.v_offset_bytes(page, head, token % kPageSize, channel), s.fresh_v[i]);
    }
  }

  DecodeConfig config_of(const Launch& launch, bool fast_bias) const {
    const int32_t most = std::ranges::max(launch.batch.num_queries);
    const DecodeChoice choice =
        choose_decode(launch.geometry, launch.format, params_.num_q_heads / params_.num_kv_heads, most, fast_bias);
    if (!choice.ok) throw_unsupported("{}", choice.reason);
    return choice.config;
  }

  void run(Launch& launch) {
    launch.batch.page_table = launch.table;
    std::unique_ptr<DeviceKeyBias> bias;
    if (launch.transform != nullptr) {
      // RoPE multiplies what it turns (YaRN, LongRoPE): the removed vector comes back multiplied, too.
      KeyTransform transform = *launch.transform;
      for (float& x : transform.removed) x *= static_cast<float>(params_.rope->magnitude());
      bias = std::make_unique<DeviceKeyBias>(make_key_bias(transform, params_.rope->frequencies()));
    }
    const DecodeConfig config = config_of(launch, bias != nullptr && bias->shape().fast_steps > 0);
    const DecodePlan plan =
        plan_decode(config, launch.batch, query_limits(config), {}, bias == nullptr ? BiasShape{} : bias->shape());
    check_launched(launch, plan.config);
    const DevicePlan on_device(plan, launch.table);
    const DType q_dtype = config.key == DType::kBF16 ? DType::kBF16 : DType::kF16;
    std::vector<uint16_t> q_rows;
    for (const size_t i : launch.sequences) {
      const AttendSequence& s = params_.sequences[i];
      const int64_t row_elems = params_.num_q_heads * params_.k_head_dim;
      const std::vector<uint16_t> rows =
          to_16bit(q_dtype, {params_.q + s.query_row * row_elems, static_cast<size_t>(s.num_queries * row_elems)});
      q_rows.insert(q_rows.end(), rows.begin(), rows.end());
    }
    const auto elems = static_cast<int64_t>(q_rows.size());
    const DeviceBuffer q = to_device(q_rows), out(elems * 2), lse(elems / params_.k_head_dim * 4);
    DecodeArguments arguments;
    arguments.blocks = launch.blocks->data();
    arguments.scales = launch.scales->data();
    arguments.fixed_scales = launch.fixed_scales;
    arguments.q = q.data();
    arguments.out = out.data();
    arguments.lse = lse.as<float>();
    arguments.bias = bias.get();
    arguments.q_is_bf16 = q_dtype == DType::kBF16;
    arguments.softmax_scale = params_.softmax_scale;
    arguments.logit_soft_cap = params_.logit_soft_cap;
    launch_decode(on_device, arguments, nullptr);
    join(launch, from_16bit(q_dtype, to_host<uint16_t>(out, elems)), to_host<float>(lse, elems / params_.k_head_dim));
  }

  // What a log says about this call is the name that supports() gives; it must be that of the launched instance.
  void check_launched(const Launch& launch, const DecodeConfig& launched) const {
    const Support said =
        family_support(launch.geometry, launch.format, params_.num_q_heads / params_.num_kv_heads, Phase::kMixed);
    const std::string name = family_kernel_name(Phase::kMixed, require_instance(launched).config);
    ASYMKV_CHECK(name == said.kernel, "launched {} where {} was announced", name, said.kernel);
  }

  void join(const Launch& launch, const std::vector<float>& out, const std::vector<float>& lse) {
    size_t row = 0;
    for (const size_t i : launch.sequences) {
      for (size_t own = 0; own < results_[i].lse.size(); ++own, ++row)
        results_[i].join(own, static_cast<double>(lse[row]), out.data() + row * head_dim(), head_dim());
    }
  }

  void write_results() {
    const auto heads = static_cast<size_t>(params_.num_q_heads);
    for (size_t i = 0; i < results_.size(); ++i) {
      Result& result = results_[i];
      const auto first = static_cast<size_t>(params_.sequences[i].query_row) * heads;
      for (size_t row = 0; row < result.lse.size(); ++row) {
        if (params_.sinks != nullptr)
          result.join(row, static_cast<double>(params_.sinks[row % heads]), nullptr, head_dim());
        for (size_t c = 0; c < head_dim(); ++c)
          params_.out[(first + row) * head_dim() + c] = static_cast<float>(result.out[row * head_dim() + c]);
        if (params_.lse != nullptr) params_.lse[first + row] = static_cast<float>(result.lse[row]);
      }
    }
  }

  const AttendParams& params_;
  std::vector<Result> results_;
};

}  // namespace

void attend_from_host(const AttendParams& params) {
  HostAttend(params).run();
}

}  // namespace asymkv::cuda
