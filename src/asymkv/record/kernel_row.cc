#include "asymkv/record/kernel_row.h"

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/kv/format.h"
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

// Bytes of a page as the layout of the row's format has them, and of the pool where the row says how large it was.
void add_bytes(JsonFields& row, int64_t pool_pages, Record& record) {
  AllocatedSide &key = *record.key.allocated, &value = *record.value.allocated;
  // A row may have fixed scales on one side and dynamic ones on the other, which no single policy says.
  const auto parse = [&row](const std::string& ids, const std::string& scale) {
    const ScaleKind policy = scale == scale_kind_name(ScaleKind::kFixed) ? ScaleKind::kFixed : ScaleKind::kDynamic;
    return row.parsed("record", ids,
                      [policy](const std::string& text) { return parse_kv_format(text, DType::kBF16, policy); });
  };
  KvFormat format = parse(key.format + "/bf16", key.scale);
  format.value = parse("bf16/" + value.format, value.scale).value;
  if (key.scale != scale_kind_name(format.key.scale) || value.scale != scale_kind_name(format.value.scale)) {
    row.fail("record", fmt::format("has {} keys with scale {} and {} values with scale {}: no format of ours",
                                   key.format, key.scale, value.format, value.scale));
  }
  const int64_t head_dim = row.integer("head_dim");
  const KvLayout layout({row.integer("num_kv_heads"), head_dim, head_dim, record.layout.page_size}, format);
  const PageBytes page = layout.page_bytes();
  key.page_bytes = page.k_payload;
  key.scale_bytes = page.k_scales;
  key.payload_bytes = pool_pages * page.k_payload;
  value.page_bytes = page.v_payload;
  value.scale_bytes = page.v_scales;
  value.payload_bytes = pool_pages * page.v_payload;
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
  add_bytes(row, launch.has("pool_pages") ? launch.integer("pool_pages") : 0, record);
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
