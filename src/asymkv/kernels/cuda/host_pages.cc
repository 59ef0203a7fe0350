#include "asymkv/kernels/cuda/host_pages.h"

namespace asymkv::cuda {
namespace {

// A layer's view that starts at one page.
KvLayerView view_from_page(const KvLayerView& view, int64_t page) {
  KvLayerView from = view;
  const int64_t scales = page * view.layout->page_scale_elems();
  from.k_plane += page * view.layout->k_page_stride_bytes();
  from.v_plane += page * view.layout->v_page_stride_bytes();
  if (from.k_scales != nullptr) from.k_scales += scales;
  if (from.v_scales != nullptr) from.v_scales += scales;
  return from;
}

}  // namespace

int32_t DevicePages::add(int64_t page) {
  const auto [at, is_new] = index_.try_emplace(page, static_cast<int32_t>(pages_.size()));
  if (is_new) pages_.push_back(page);
  return at->second;
}

void DevicePages::upload() {
  const auto count = static_cast<int64_t>(pages_.size());
  host_blocks_.resize(static_cast<size_t>(tiled_.plane_bytes(count)));
  host_scales_.resize(static_cast<size_t>(tiled_.scale_plane_bytes(count)));
  for (size_t i = 0; i < pages_.size(); ++i) plain_to_tiled(view_from_page(view_, pages_[i]), tiled_, 0, planes(i));
  blocks_ = to_device(host_blocks_);
  scales_ = to_device(host_scales_);
}

KvLayerView DevicePages::device_view() const {
  KvLayerView view;
  view.layout = view_.layout;
  view.num_pages = static_cast<int64_t>(pages_.size());
  view.fixed_scales = view_.fixed_scales;
  view.transform = view_.transform;
  view.tiled_blocks = blocks_.data();
  view.tiled_scales = scales_.data();
  return view;
}

void DevicePages::download() {
  blocks_.download(host_blocks_);
  scales_.download(host_scales_);
  for (size_t i = 0; i < pages_.size(); ++i) tiled_to_plain(planes(i), tiled_, 0, view_from_page(view_, pages_[i]));
}

TiledPlanes DevicePages::planes(size_t i) {
  const auto block = static_cast<size_t>(tiled_.page_stride_bytes());
  const auto scale = static_cast<size_t>(tiled_.scale_page_stride_bytes());
  return {std::span(host_blocks_).subspan(i * block, block), std::span(host_scales_).subspan(i * scale, scale)};
}

}  // namespace asymkv::cuda
