#pragma once

#include <optional>
#include <string>

#include "asymkv/base/json.h"
#include "asymkv/planner/model_shape_family.h"

namespace asymkv {

// The first key, in the order of the alphabet, that might change what a layer stores and that a reader of `family`
// neither reads nor knows to be harmless. A key might if a word of its name speaks of attention, caches, windows, heads
// or states; one that is null, false or empty is off.
std::optional<std::string> unknown_attention_key(const Json& object, const ShapeFamily& family);

// Whether a key gives a size or a rule that a reader of some family takes from the decoder's object.
bool is_decoder_key(const std::string& key);

}  // namespace asymkv
