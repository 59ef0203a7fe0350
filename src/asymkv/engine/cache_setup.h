#pragma once

#include <memory>
#include <vector>

#include "asymkv/engine/scales.h"
#include "asymkv/kv/cache.h"

namespace asymkv {

// Whether the family adds a constant to its keys that can be taken out of the stored ones (a key bias with no
// normalisation after it).
bool has_removable_key_vector(const Decoder& decoder);
// The slow/fast/kept split of each layer's key bias (kv/key_transform.h).
std::vector<KeyTransform> make_key_transforms(const Decoder& decoder);

struct CacheRequest {
  KvFormat format;
  int64_t num_pages = 0;
  int64_t page_size = 16;
  const ScaleSet* scales = nullptr;  // needed where a side has fixed scales
  CacheUse use;
};

// A cache for this model and format: fixed scales from the set, removed vectors from the key bias. Throws
// Error{kUnsupported} for bias removal on a model without a key bias, for control kernels where the decoder has none
// and for a format the attention kernels refuse (the kernels' own sentence), Error{kUsage} naming layer and side for a
// missing fixed scale.
std::unique_ptr<KvCache> make_cache(const Decoder& decoder, const CacheRequest& request);

}  // namespace asymkv
