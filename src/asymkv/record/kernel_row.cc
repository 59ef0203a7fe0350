#include "asymkv/record/kernel_row.h"

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/kv/layout.h"

namespace asymkv {
namespace {

constexpr std::string_view kSchema = "asymkv-kernel-record-1";
constexpr std::string_view kPrebias = "-prebias";

// The dtype alone does not say how keys were stored before it: the resolved id of that dtype does, and no other.
std::string exact_id(const std::string& dtype, const std::string& resolved) {
  return resolved == dtype + std::string(kPrebias) ? resolved : dtype;
}

SideFacts side_from(JsonFields fields, const LaunchedKernel& kernel) {
  SideFacts side;
  side.requested = fields.text("requested");
  side.resolved = fields.text("resolved");
  AllocatedSide allocated;
  allocated.format = exact_id(fields.text("allocated"), *side.resolved);
  allocated.scale = fields.text("scale");
  side.allocated = allocated;
  LaunchedKernel launched = kernel;
  launched.format = exact_id(fields.text("launched"), *side.resolved);
  side.launched = {launched};
  fields.finish();
  return side;
}

ScaleKind parse_scale_kind(std::string_view name) {
  for (const ScaleKind kind : {ScaleKind::kNone, ScaleKind::kFixed, ScaleKind::kDynamic}) {
    if (scale_kind_name(kind) == name) return kind;
  }
  throw_bad_input("\"{}\" is no scale; known: none fixed dynamic", name);
}

// Page bytes of both sides as the layout of their formats has them.
void add_page_bytes(JsonFields& row, Record& record) {
  KvFormat format;
  const SideFacts& key = record.key;
  format.key.prebias = key.allocated->format.ends_with(kPrebias);
  const std::string key_dtype =
      key.allocated->format.substr(0, key.allocated->format.size() - (format.key.prebias ? kPrebias.size() : 0));
  format.key.dtype = row.parsed("key", key_dtype, parse_dtype);
  format.key.scale = row.parsed("scale", key.allocated->scale, parse_scale_kind);
  format.value.dtype = row.parsed("value", record.value.allocated->format, parse_dtype);
  format.value.scale = row.parsed("value_scale", record.value.allocated->scale, parse_scale_kind);
  const int64_t head_dim = row.integer("head_dim");
  const KvLayout layout({row.integer("num_kv_heads"), head_dim, head_dim, record.layout.page_size}, format);
  const PageBytes page = layout.page_bytes();
  record.key.allocated->page_bytes = page.k_payload;
  record.key.allocated->scale_bytes = page.k_scales;
  record.value.allocated->page_bytes = page.v_payload;
  record.value.allocated->scale_bytes = page.v_scales;
}

}  // namespace

bool is_kernel_row(const Json& row) {
  const auto record = row.find("record");
  if (record == row.end() || !record->is_object()) return false;
  // A prefill row's record names its types, but not where each was seen: there are no facts in it.
  return record->value("schema", "") == kSchema && record->contains("key") && record->at("key").is_object();
}

Record record_from_kernel_row(const Json& json, std::string_view origin) {
  JsonFields row(json, std::string(origin));
  JsonFields fields = row.object("record");
  JsonFields launch = fields.object("launch");
  Record record;
  record.worker = "cuda-sm90a";
  LaunchedKernel kernel;
  kernel.family = record.worker;
  kernel.instance = launch_instance("decode", fields.text("kernel"), "");
  kernel.build = fields.text("kernel_build");
  kernel.count = launch.integer("page_sets");
  record.key = side_from(fields.object("key"), kernel);
  record.value = side_from(fields.object("value"), kernel);
  record.layout = {fields.text("layout"), fields.integer("page_size")};
  add_page_bytes(row, record);
  const int64_t capability = fields.integer("compute_capability");
  record.device = {"cuda", fields.text("device"), fields.text("driver"), fields.text("toolkit"),
                   fmt::format("{}.{}", capability / 10, capability % 10)};
  record.build = {kernel.build, fields.text("compiler")};
  record.launch = {launch.text("split"), launch.boolean("graph") ? "graph" : "eager", row.integer("batch")};
  const bool scaled = record.key.allocated->scale != "none" || record.value.allocated->scale != "none";
  if (scaled) record.scales.source = "unknown";
  if (record.key.allocated->format.ends_with(kPrebias)) record.transform.kind = "unknown";
  return record;
}

}  // namespace asymkv
