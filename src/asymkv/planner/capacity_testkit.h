#pragma once

#include <utility>
#include <vector>

#include "asymkv/planner/capacity_cache.h"

namespace asymkv::planner_testkit {

inline LayerGroup full_layers(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim) {
  return {.kind = LayerKind::kFull,
          .num_layers = num_layers,
          .num_kv_heads = num_kv_heads,
          .k_head_dim = head_dim,
          .v_head_dim = head_dim};
}

inline ModelShape shape_of(std::vector<LayerGroup> groups, int64_t num_q_heads) {
  ModelShape shape;
  shape.model_type = "typed in";
  shape.native_dtype = DType::kBF16;
  shape.num_q_heads = num_q_heads;
  shape.groups = std::move(groups);
  shape.verdict = ShapeVerdict::kAccept;
  return shape;
}

// The formats of the eleven arms.
inline std::vector<KvFormat> all_formats(DType native) {
  std::vector<KvFormat> formats = {parse_kv_format("native", native, ScaleKind::kDynamic)};
  for (const char* kv : {"k16v8", "k8v16", "k8v8", "k8v8-prebias"}) {
    for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
      formats.push_back(parse_kv_format(kv, native, scale));
    }
  }
  for (const char* kv : {"ki8v8", "ki8v8-prebias"}) formats.push_back(parse_kv_format(kv, native, ScaleKind::kDynamic));
  return formats;
}

}  // namespace asymkv::planner_testkit
