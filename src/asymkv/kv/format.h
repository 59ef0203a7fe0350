#pragma once

#include <string>
#include <string_view>

#include "asymkv/tensor/dtype.h"

namespace asymkv {

// Where the scale of an 8-bit side comes from. 16- and 32-bit sides have none.
enum class ScaleKind : uint8_t {
  kNone,     // the element is stored as it is
  kFixed,    // one FP32 per layer and side, set before the first write
  kDynamic,  // one FP32 per token, head and side, computed by the writer
};
std::string_view scale_kind_name(ScaleKind kind);  // "none", "fixed", "dynamic"

// How keys are stored. `prebias`: a constant vector per layer and head is taken out before RoPE and put back, rotated,
// at read (key_transform.h).
struct KeyFormat {
  DType dtype = DType::kBF16;
  bool prebias = false;
  ScaleKind scale = ScaleKind::kNone;
  bool operator==(const KeyFormat&) const = default;
  bool is_8bit() const { return dtype_bytes(dtype) == 1; }
  // "bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias"
  std::string id() const;
};

// How values are stored: bf16, f16, f32 or e4m3.
struct ValueFormat {
  DType dtype = DType::kBF16;
  ScaleKind scale = ScaleKind::kNone;
  bool operator==(const ValueFormat&) const = default;
  bool is_8bit() const { return dtype_bytes(dtype) == 1; }
  std::string id() const;
};

// The root type: the two sides are independent.
struct KvFormat {
  KeyFormat key;
  ValueFormat value;
  bool operator==(const KvFormat&) const = default;
  std::string id() const { return key.id() + "/" + value.id(); }
  // "fixed", "dynamic" or "none": the policy of the 8-bit sides (both sides share one policy).
  ScaleKind scale() const { return key.scale != ScaleKind::kNone ? key.scale : value.scale; }
};

// Parses `native`, `k16v8`, `k8v16`, `k8v8`, `k8v8-prebias`, `ki8v8`, `ki8v8-prebias` or exact ids `KEY/VALUE`.
// native_dtype: the model's own type, used for `native` and `k16`/`v16`. scale: kFixed or kDynamic, applied to the
// 8-bit sides only. Throws Error{kUsage} naming the text and what is known; Error{kUnsupported} for INT8 keys with
// fixed scales (INT8 keys are dynamic only).
KvFormat parse_kv_format(std::string_view text, DType native_dtype, ScaleKind scale);

// The type that just-computed keys (values) are rounded to before they are stored or attended to fresh: the stored type
// of a 16- or 32-bit side, else the model's native type.
DType fresh_key_dtype(const KvFormat& format, DType native_dtype);
DType fresh_value_dtype(const KvFormat& format, DType native_dtype);

}  // namespace asymkv
