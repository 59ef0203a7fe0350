#pragma once

#include <string>
#include <vector>

#include "asymkv/planner/model_shape.h"
#include "asymkv/planner/model_shape_family.h"
#include "asymkv/planner/model_shape_source.h"

namespace asymkv {

constexpr int64_t kMaxShapeLayers = 4096;

// The kind of every layer and the key that said so. A refusal has no kinds.
struct LayerKinds {
  std::vector<LayerKind> kinds = {};
  int64_t window = 0;    // tokens, of the sliding layers
  std::string key = {};  // empty where no key but num_hidden_layers had a say
  std::string refusal = {};
};

// From layer_types where the file has them, else by the family's rule. A window that no sequence outgrows
// (max_positions, 0: unknown) makes no sliding layer. Throws like shape_from_config.
LayerKinds read_layer_kinds(const ShapeSource& source, const ShapeFamily& family, int64_t max_positions);

// Which key gives how many KV heads the layers of a kind have, and how wide they are.
struct HeadShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // of keys and of values
  std::string key = {};  // of the KV heads
};
// num_q_heads: a positive multiple of the KV heads, else throws Error{kBadInput}.
HeadShape read_heads(const ShapeSource& source, const ShapeFamily& family, LayerKind kind, int64_t num_q_heads);

}  // namespace asymkv
