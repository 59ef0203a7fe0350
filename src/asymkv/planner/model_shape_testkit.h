#pragma once

#include <string>

#include "asymkv/base/json.h"

namespace asymkv::testkit {

// `base` with the members of `changes`; one that is null there is taken away.
inline Json with(Json base, const Json& changes) {
  for (const auto& change : changes.items()) {
    base[change.key()] = change.value();
    if (change.value().is_null()) base.erase(change.key());
  }
  return base;
}

// Four layers of eight query heads and two KV heads, 16 wide.
inline Json tiny_shape_config(const std::string& model_type, const Json& changes) {
  return with({{"model_type", model_type},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"head_dim", 16},
               {"hidden_size", 64},
               {"dtype", "bfloat16"},
               {"max_position_embeddings", 4096}},
              changes);
}

}  // namespace asymkv::testkit
