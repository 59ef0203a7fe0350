#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <map>
#include <unordered_map>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/sdpa.h"

namespace asymkv::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kQOffsets, kKvOffsets, kQLens, kKvLens };

void check(fe::error_t error, const SdpaShape& shape) {  // a copy: the interface's readers are not const
  if (error.is_good()) return;
  throw_unsupported("cuDNN does not serve attention of {}/{} heads x {}, batch {}, {} x {} tokens: {}",
                    shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.batch, shape.max_q, shape.max_kv,
                    error.get_message());
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw_unsupported("{} failed: {}", call, cudnnGetErrorString(status));
}

// Rows of [head][head_dim] as a [batch, head, token, head_dim] tensor whose requests start at `offsets`.
Tensor rows(fe::graph::Graph& graph, Uid uid, const SdpaShape& s, int64_t heads, int64_t tokens,
            const Tensor& offsets) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({s.batch, heads, tokens, s.head_dim})
                          .set_stride({heads * tokens * s.head_dim, s.head_dim, heads * s.head_dim, 1})
                          .set_ragged_offset(offsets));
}

Tensor integers(fe::graph::Graph& graph, Uid uid, int64_t count) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(fe::DataType_t::INT32));
}

std::unique_ptr<fe::graph::Graph> build_graph(const SdpaShape& s, cudnnHandle_t handle) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(s.bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Tensor q_offsets = integers(*graph, kQOffsets, s.batch + 1);
  const Tensor kv_offsets = integers(*graph, kKvOffsets, s.batch + 1);
  const Tensor q = rows(*graph, kQ, s, s.num_q_heads, s.max_q, q_offsets);
  const Tensor k = rows(*graph, kK, s, s.num_kv_heads, s.max_kv, kv_offsets);
  const Tensor v = rows(*graph, kV, s, s.num_kv_heads, s.max_kv, kv_offsets);
  const auto options = fe::graph::SDPA_attributes()
                           .set_name("attention")
                           .set_generate_stats(true)
                           .set_attn_scale(s.softmax_scale)
                           .set_causal_mask(s.causal)
                           .set_padding_mask(true)
                           .set_seq_len_q(integers(*graph, kQLens, s.batch))
                           .set_seq_len_kv(integers(*graph, kKvLens, s.batch));
  const auto [out, stats] = graph->sdpa(q, k, v, options);
  out->set_output(true)
      .set_uid(kOut)
      .set_dim({s.batch, s.num_q_heads, s.max_q, s.head_dim})
      .set_stride({s.num_q_heads * s.max_q * s.head_dim, s.head_dim, s.num_q_heads * s.head_dim, 1})
      .set_ragged_offset(q_offsets);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.num_q_heads, s.max_q, 1})
      .set_stride({s.num_q_heads * s.max_q, s.max_q, 1, 1});
  check(graph->build(handle, {fe::HeurMode_t::A}), s);
  return graph;
}

}  // namespace

struct Sdpa::Impl {
  cudnnHandle_t handle = nullptr;
  std::map<SdpaShape, std::unique_ptr<fe::graph::Graph>> graphs;
  DeviceBuffer workspace;

  Impl() { check(cudnnCreate(&handle), "cudnnCreate"); }
  ~Impl() { (void)cudnnDestroy(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  fe::graph::Graph& graph_of(const SdpaShape& shape) {
    auto& graph = graphs[shape];
    if (graph == nullptr) graph = build_graph(shape, handle);
    return *graph;
  }
};

std::string sdpa_refusal() {
  return {};
}

Sdpa::Sdpa() : impl_(std::make_unique<Impl>()) {}
Sdpa::~Sdpa() = default;

std::string Sdpa::version() const {
  const size_t version = cudnnGetVersion();
  return fmt::format("cudnn {}.{}.{}, front end {}.{}.{}", version / 10000, version / 100 % 100, version % 100,
                     CUDNN_FRONTEND_MAJOR_VERSION, CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

void Sdpa::run(const SdpaShape& shape, const SdpaArguments& a, StreamHandle stream) {
  if (shape.batch == 0) return;
  check(cudnnSetStream(impl_->handle, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
  fe::graph::Graph& graph = impl_->graph_of(shape);
  int64_t workspace_bytes = 0;
  check(graph.get_workspace_size(workspace_bytes), shape);
  if (workspace_bytes > impl_->workspace.bytes()) {
    ASYMKV_CUDA(cudaDeviceSynchronize());  // earlier calls may still use the old one
    impl_->workspace = DeviceBuffer(workspace_bytes);
  }
  auto writable = [](const void* pointer) { return const_cast<void*>(pointer); };  // the interface knows no inputs
  std::unordered_map<int64_t, void*> pack = {{kQ, writable(a.q)},
                                             {kK, writable(a.k)},
                                             {kV, writable(a.v)},
                                             {kOut, a.out},
                                             {kStats, a.stats},
                                             {kQOffsets, writable(a.q_offsets)},
                                             {kKvOffsets, writable(a.kv_offsets)},
                                             {kQLens, writable(a.q_lens)},
                                             {kKvLens, writable(a.kv_lens)}};
  check(graph.execute(impl_->handle, pack, impl_->workspace.data()), shape);
}

}  // namespace asymkv::cuda
