#include "asymkv/kv/format.h"

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::string_view kPrebiasSuffix = "-prebias";

bool is_wide(DType dtype) {
  return dtype_bytes(dtype) >= 2;
}

KeyFormat parse_key(std::string_view text, std::string_view whole, ScaleKind scale) {
  KeyFormat key;
  std::string_view base = text;
  if (base.ends_with(kPrebiasSuffix)) {
    key.prebias = true;
    base.remove_suffix(kPrebiasSuffix.size());
  }
  if (base != "bf16" && base != "f16" && base != "f32" && base != "e4m3" && base != "i8") {
    throw_usage("KV format \"{}\": unknown key type \"{}\"; known: bf16 f16 f32 e4m3 e4m3-prebias i8 i8-prebias", whole,
                text);
  }
  key.dtype = parse_dtype(base);
  if (key.prebias && is_wide(key.dtype)) {
    throw_usage("KV format \"{}\": bias removal is for 8-bit keys, not for {}", whole, base);
  }
  if (key.is_8bit()) key.scale = scale;
  if (key.dtype == DType::kI8 && scale == ScaleKind::kFixed) {
    throw_unsupported("KV format \"{}\": INT8 keys have dynamic scales only; use --scale dynamic", whole);
  }
  return key;
}

ValueFormat parse_value(std::string_view text, std::string_view whole, ScaleKind scale) {
  if (text != "bf16" && text != "f16" && text != "f32" && text != "e4m3") {
    throw_usage("KV format \"{}\": unknown value type \"{}\"; known: bf16 f16 f32 e4m3", whole, text);
  }
  ValueFormat value;
  value.dtype = parse_dtype(text);
  if (value.is_8bit()) value.scale = scale;
  return value;
}

// The exact ids that an alias stands for, empty if `text` is no alias.
std::string expand_alias(std::string_view text, std::string_view native) {
  if (text == "native") return fmt::format("{}/{}", native, native);
  if (text == "k16v8") return fmt::format("{}/e4m3", native);
  if (text == "k8v16") return fmt::format("e4m3/{}", native);
  if (text == "k8v8") return "e4m3/e4m3";
  if (text == "k8v8-prebias") return "e4m3-prebias/e4m3";
  if (text == "ki8v8") return "i8/e4m3";
  if (text == "ki8v8-prebias") return "i8-prebias/e4m3";
  return {};
}

}  // namespace

std::string_view scale_kind_name(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kNone:
      return "none";
    case ScaleKind::kFixed:
      return "fixed";
    case ScaleKind::kDynamic:
      return "dynamic";
  }
  return "?";
}

std::string KeyFormat::id() const {
  return std::string(dtype_name(dtype)) + (prebias ? std::string(kPrebiasSuffix) : "");
}

std::string ValueFormat::id() const {
  return std::string(dtype_name(dtype));
}

KvFormat parse_kv_format(std::string_view text, DType native_dtype, ScaleKind scale) {
  ASYMKV_CHECK(scale != ScaleKind::kNone, "parse_kv_format needs a scale policy for 8-bit sides");
  ASYMKV_CHECK(is_wide(native_dtype), "a model's own type cannot be {}", dtype_name(native_dtype));
  const std::string alias = expand_alias(text, dtype_name(native_dtype));
  const std::string_view ids = alias.empty() ? text : std::string_view(alias);
  const size_t slash = ids.find('/');
  if (slash == std::string_view::npos) {
    throw_usage(
        "unknown KV format \"{}\"; known: native k16v8 k8v16 k8v8 k8v8-prebias ki8v8 ki8v8-prebias, or KEY/VALUE such "
        "as f16/e4m3",
        text);
  }
  return {parse_key(ids.substr(0, slash), text, scale), parse_value(ids.substr(slash + 1), text, scale)};
}

DType fresh_key_dtype(const KvFormat& format, DType native_dtype) {
  return is_wide(format.key.dtype) ? format.key.dtype : native_dtype;
}

DType fresh_value_dtype(const KvFormat& format, DType native_dtype) {
  return is_wide(format.value.dtype) ? format.value.dtype : native_dtype;
}

}  // namespace asymkv
