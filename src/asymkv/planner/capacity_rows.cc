#include "asymkv/planner/capacity_rows.h"

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

bool is_row_of(const Json& row, std::string_view origin, const RowsKey& key) {
  const KvGeometry& geometry = key.group.layout.geometry();
  const KvFormat& format = key.group.layout.format();
  const Json& record = require_field(row, "record", origin);
  const std::string key_scale = require_string(require_field(record, "key", origin), "scale", origin);
  return require_int(row, "num_q_heads", origin) == key.num_q_heads &&
         require_int(row, "num_kv_heads", origin) == geometry.num_kv_heads &&
         require_int(row, "head_dim", origin) == geometry.k_head_dim && geometry.k_head_dim == geometry.v_head_dim &&
         require_int(row, "page_size", origin) == geometry.page_size &&
         require_string(row, "key", origin) == format.key.id() &&
         require_string(row, "value", origin) == format.value.id() && key_scale == scale_kind_name(format.key.scale) &&
         require_string(row, "value_scale", origin) == scale_kind_name(format.value.scale) &&
         require_string(record, "layout", origin) == key.layout;
}

}  // namespace

Json measured_rows(const Json& bench, std::string_view origin, const RowsKey& key) {
  constexpr std::string_view kSchema = "asymkv-bench-kernel-1";
  const std::string schema = require_string(bench, "schema", origin);
  if (schema != kSchema) throw_bad_input("{}: schema \"{}\" is not \"{}\"", origin, schema, kSchema);
  const Json& rows = require_field(bench, "rows", origin);
  if (!rows.is_array()) throw_bad_input("{}: \"rows\" is no array", origin);
  Json found = Json::array();
  if (require_string(bench, "device", origin) != key.device) return found;
  for (const Json& row : rows) {
    if (!is_row_of(row, origin, key)) continue;
    found.push_back(row);
    found.back().erase("record");
    found.back()["layers"] = layer_kind_name(key.group.kind);
  }
  return found;
}

}  // namespace asymkv
