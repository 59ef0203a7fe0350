#include "asymkv/record/record.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <initializer_list>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/json_fields.h"

namespace asymkv {
namespace {

constexpr std::string_view kUnset = "unset";
constexpr std::string_view kUnknown = "unknown";
constexpr std::string_view kOurEngine = "asymkv";
constexpr std::string_view kQueryMark = " queries=";

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

std::string nullable_text(JsonFields& fields, const std::string& field) {
  if (fields.raw(field).is_null()) return {};
  std::string text = fields.text(field);
  if (text.empty()) fields.fail(field, "is empty: write null");
  return text;
}

std::string nullable_hash(JsonFields& fields, const std::string& field) {
  std::string text = nullable_text(fields, field);
  const bool ok =
      text.empty() || (text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos);
  if (!ok) fields.fail(field, fmt::format("is \"{}\", which is no lower-case SHA-256", text));
  return text;
}

std::string word(JsonFields& fields, const std::string& field, std::initializer_list<std::string_view> known) {
  std::string text = fields.text(field);
  if (std::ranges::find(known, text) != known.end()) return text;
  std::string list;
  for (const std::string_view candidate : known) list += fmt::format(" {}", candidate);
  fields.fail(field, fmt::format("is \"{}\"; known:{}", text, list));
}

int64_t size_field(JsonFields& fields, const std::string& field, int64_t least) {
  const int64_t value = fields.integer(field);
  if (value < least) fields.fail(field, fmt::format("is {}, below {}", value, least));
  return value;
}

std::string format_field(JsonFields& fields, const std::string& field) {
  // Exact ids only: "auto" and "fp8" say nothing about what is stored.
  return word(fields, field, {"bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias"});
}

// ---------------------------------------------------------------- one side

Json side_to_json(const SideFacts& side) {
  Json allocated = kUnknown, launched = kUnknown;
  if (side.allocated) {
    const AllocatedSide& a = *side.allocated;
    allocated = {{"format", a.format},
                 {"scale", a.scale},
                 {"page_bytes", a.page_bytes},
                 {"scale_bytes", a.scale_bytes},
                 {"payload_bytes", a.payload_bytes}};
  }
  if (!side.launched.empty()) {
    launched = Json::array();
    for (const LaunchedKernel& kernel : side.launched) {
      launched.push_back({{"family", kernel.family},
                          {"instance", kernel.instance},
                          {"format", kernel.format},
                          {"build", kernel.build},
                          {"count", kernel.count}});
    }
  }
  return {{"requested", side.requested.value_or(std::string(kUnset))},
          {"resolved", side.resolved.value_or(std::string(kUnknown))},
          {"allocated", std::move(allocated)},
          {"launched", std::move(launched)},
          {"effective", side.effective()},
          {"attested", side.attested()}};
}

bool says(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

AllocatedSide allocated_from(JsonFields fields) {
  AllocatedSide allocated;
  allocated.format = format_field(fields, "format");
  allocated.scale = word(fields, "scale", {"none", "fixed", "dynamic"});
  allocated.page_bytes = size_field(fields, "page_bytes", 1);
  allocated.scale_bytes = size_field(fields, "scale_bytes", 0);
  allocated.payload_bytes = size_field(fields, "payload_bytes", 0);
  fields.finish();
  return allocated;
}

LaunchedKernel launched_from(JsonFields fields) {
  LaunchedKernel kernel;
  kernel.family = fields.text("family");
  kernel.instance = fields.text("instance");
  kernel.format = format_field(fields, "format");
  kernel.build = fields.text("build");
  kernel.count = size_field(fields, "count", 1);
  fields.finish();
  return kernel;
}

SideFacts side_from(JsonFields fields) {
  SideFacts side;
  if (!says(fields.raw("requested"), kUnset)) side.requested = fields.text("requested");
  if (!says(fields.raw("resolved"), kUnknown)) side.resolved = format_field(fields, "resolved");
  if (!says(fields.raw("allocated"), kUnknown)) side.allocated = allocated_from(fields.object("allocated"));
  if (!says(fields.raw("launched"), kUnknown)) {
    for (JsonFields& kernel : fields.objects("launched")) side.launched.push_back(launched_from(std::move(kernel)));
    if (side.launched.empty()) fields.fail("launched", "is an empty list: write \"unknown\"");
  }
  if (fields.text("effective") != side.effective()) {
    fields.fail("effective", fmt::format("must be \"{}\", the allocated format", side.effective()));
  }
  if (fields.boolean("attested") != side.attested()) {
    fields.fail("attested", fmt::format("must be {}, which is what allocated and launched bear out", side.attested()));
  }
  fields.finish();
  return side;
}

// ---------------------------------------------------------------- the parts of a record

Json model_to_json(const Record::Model& model) {
  return {{"id", text_or_null(model.id)},
          {"revision", text_or_null(model.revision)},
          {"weights_sha256", text_or_null(model.weights_sha256)},
          {"tokenizer_sha256", text_or_null(model.tokenizer_sha256)},
          {"config_sha256", text_or_null(model.config_sha256)},
          {"native_dtype", text_or_null(model.native_dtype)}};
}

Record::Model model_from(JsonFields fields) {
  Record::Model model;
  model.id = nullable_text(fields, "id");
  model.revision = nullable_text(fields, "revision");
  model.weights_sha256 = nullable_hash(fields, "weights_sha256");
  model.tokenizer_sha256 = nullable_hash(fields, "tokenizer_sha256");
  model.config_sha256 = nullable_hash(fields, "config_sha256");
  model.native_dtype = nullable_text(fields, "native_dtype");
  fields.finish();
  return model;
}

Record::Scales scales_from(JsonFields fields) {
  Record::Scales scales;
  scales.source = word(fields, "source", {"none", "checkpoint", "calibrated", "dynamic", "unit"});
  scales.sha256 = nullable_hash(fields, "sha256");
  scales.epoch = size_field(fields, "epoch", 0);
  if (scales.source == "calibrated" && scales.sha256.empty()) {
    fields.fail("sha256", "is null, but calibrated scales come from a file");
  }
  fields.finish();
  return scales;
}

Record::Transform transform_from(JsonFields fields) {
  Record::Transform transform;
  transform.kind = word(fields, "kind", {"none", "key_bias_removed"});
  transform.sha256 = nullable_hash(fields, "sha256");
  if ((transform.kind == "none") != transform.sha256.empty()) {
    fields.fail("sha256", "must be given exactly where a bias was removed");
  }
  fields.finish();
  return transform;
}

Record::Layout layout_from(JsonFields fields) {
  Record::Layout layout;
  layout.id = nullable_text(fields, "id");
  layout.page_size = size_field(fields, "page_size", 0);
  fields.finish();
  return layout;
}

Json device_to_json(const Record::Device& device) {
  return {{"kind", text_or_null(device.kind)},
          {"name", text_or_null(device.name)},
          {"driver", text_or_null(device.driver)},
          {"toolkit", text_or_null(device.toolkit)},
          {"compute_capability", text_or_null(device.compute_capability)}};
}

Record::Device device_from(JsonFields fields) {
  Record::Device device;
  device.kind = nullable_text(fields, "kind");
  device.name = nullable_text(fields, "name");
  device.driver = nullable_text(fields, "driver");
  device.toolkit = nullable_text(fields, "toolkit");
  device.compute_capability = nullable_text(fields, "compute_capability");
  fields.finish();
  return device;
}

Record::Build build_from(JsonFields fields) {
  Record::Build build;
  build.hash = nullable_text(fields, "hash");
  build.compiler = nullable_text(fields, "compiler");
  fields.finish();
  return build;
}

Record::Launch launch_from(JsonFields fields) {
  Record::Launch launch;
  launch.split = nullable_text(fields, "split");
  launch.mode = word(fields, "mode", {"eager", "graph"});
  launch.batch = size_field(fields, "batch", 0);
  fields.finish();
  return launch;
}

// "2026-11-29T16:20:05Z" or null.
std::string timestamp_field(JsonFields& fields, const std::string& field) {
  std::string text = nullable_text(fields, field);
  if (text.empty()) return text;
  constexpr std::string_view kShape = "dddd-dd-ddTdd:dd:ddZ";
  bool ok = text.size() == kShape.size();
  for (size_t i = 0; ok && i < kShape.size(); ++i) {
    ok = kShape[i] == 'd' ? std::isdigit(static_cast<unsigned char>(text[i])) != 0 : text[i] == kShape[i];
  }
  if (!ok) fields.fail(field, fmt::format("is \"{}\"; expected a UTC time such as 2026-11-29T16:20:05Z", text));
  return text;
}

void check_imported(const Record& record, const JsonFields& fields) {
  if (record.engine == kOurEngine) return;
  for (const SideFacts* side : {&record.key, &record.value}) {
    if (side->resolved || side->allocated || !side->launched.empty()) {
      fields.fail("engine", fmt::format("is \"{}\", and a record imported from another engine may carry what was "
                                        "requested, nothing more",
                                        record.engine));
    }
  }
}

Record read_version_1(JsonFields fields) {
  Record record;
  fields.text("schema");
  record.engine = fields.text("engine");
  if (record.engine.empty()) fields.fail("engine", "is empty");
  record.engine_version = nullable_text(fields, "engine_version");
  record.key = side_from(fields.object("key"));
  record.value = side_from(fields.object("value"));
  record.model = model_from(fields.object("model"));
  record.scales = scales_from(fields.object("scales"));
  record.transform = transform_from(fields.object("transform"));
  record.layout = layout_from(fields.object("layout"));
  record.device = device_from(fields.object("device"));
  record.build = build_from(fields.object("build"));
  record.launch = launch_from(fields.object("launch"));
  record.protocol_sha256 = nullable_hash(fields, "protocol_sha256");
  record.argv_sha256 = nullable_hash(fields, "argv_sha256");
  record.started = timestamp_field(fields, "started");
  record.ended = timestamp_field(fields, "ended");
  fields.finish();
  check_imported(record, fields);
  return record;
}

// ---------------------------------------------------------------- merging

// What two processes of one run must agree on: everything but how much ran, when, and how it was called.
Record fixed_facts(Record record) {
  for (SideFacts* side : {&record.key, &record.value}) {
    side->launched.clear();
    if (side->allocated) side->allocated->payload_bytes = 0;
  }
  record.argv_sha256 = record.started = record.ended = std::string();
  return record;
}

void add_launches(const SideFacts& later, SideFacts& side) {
  for (const LaunchedKernel& kernel : later.launched) {
    const auto same = std::ranges::find_if(side.launched, [&](LaunchedKernel known) {
      known.count = kernel.count;
      return known == kernel;
    });
    if (same == side.launched.end()) {
      side.launched.push_back(kernel);
    } else {
      same->count += kernel.count;
    }
  }
  if (!side.allocated) return;
  side.allocated->payload_bytes = std::max(side.allocated->payload_bytes, later.allocated->payload_bytes);
}

// ---------------------------------------------------------------- arguments

bool names_a_secret(std::string_view option) {
  static constexpr std::array<std::string_view, 6> kMarks = {"key",    "token",         "password",
                                                             "secret", "authorization", "credential"};
  std::string lower(option);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // "--max-tokens" counts tokens and "--tokenizer" names a file.
  if (lower.find("tokens") != std::string::npos || lower.find("tokenizer") != std::string::npos) return false;
  return std::ranges::any_of(kMarks, [&](std::string_view mark) { return lower.find(mark) != std::string::npos; });
}

void add_argument(Sha256& hash, std::string_view argument) {
  std::array<std::byte, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(argument.size() >> (8 * i) & 0xffU);
  hash.update(std::span<const std::byte>(length));
  hash.update(argument);
}

}  // namespace

std::string launch_instance(std::string_view phase, std::string_view kernel, std::string_view query) {
  if (query.empty()) return fmt::format("{}:{}", phase, kernel);
  return fmt::format("{}:{}{}{}", phase, kernel, kQueryMark, query);
}

bool is_launch_of(std::string_view instance, std::string_view phase, std::string_view query) {
  if (!instance.starts_with(fmt::format("{}:", phase))) return false;
  const size_t mark = instance.find(kQueryMark);
  return query == (mark == std::string_view::npos ? "" : instance.substr(mark + kQueryMark.size()));
}

std::string SideFacts::effective() const {
  return allocated ? allocated->format : std::string(kUnknown);
}

bool SideFacts::attested() const {
  if (!allocated || launched.empty()) return false;
  return std::ranges::all_of(
      launched, [&](const LaunchedKernel& kernel) { return kernel.format == allocated->format && kernel.count > 0; });
}

Json record_to_json(const Record& record) {
  Json json = {
      {"schema", kRecordSchema},
      {"engine", record.engine},
      {"engine_version", text_or_null(record.engine_version)},
      {"key", side_to_json(record.key)},
      {"value", side_to_json(record.value)},
      {"model", model_to_json(record.model)},
      {"scales",
       {{"source", record.scales.source},
        {"sha256", text_or_null(record.scales.sha256)},
        {"epoch", record.scales.epoch}}},
      {"transform", {{"kind", record.transform.kind}, {"sha256", text_or_null(record.transform.sha256)}}},
      {"layout", {{"id", text_or_null(record.layout.id)}, {"page_size", record.layout.page_size}}},
      {"device", device_to_json(record.device)},
      {"build", {{"hash", text_or_null(record.build.hash)}, {"compiler", text_or_null(record.build.compiler)}}},
      {"launch",
       {{"split", text_or_null(record.launch.split)}, {"mode", record.launch.mode}, {"batch", record.launch.batch}}},
      {"protocol_sha256", text_or_null(record.protocol_sha256)},
      {"argv_sha256", text_or_null(record.argv_sha256)},
      {"started", text_or_null(record.started)},
      {"ended", text_or_null(record.ended)}};
  // A record that cannot be read back must not reach a file.
  try {
    ASYMKV_CHECK(record_from_json(json, "record") == record, "a record changes when it is read back");
  } catch (const Error& e) {
    throw Error(ErrorCode::kInternal, e.what());
  }
  return json;
}

Record record_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  const std::string schema = fields.text("schema");
  if (schema == kRecordSchema) return read_version_1(std::move(fields));
  throw_unsupported("{}: field \"schema\" is \"{}\"; this program reads {}", origin, schema, kRecordSchema);
}

Record read_record(const std::filesystem::path& path) {
  return record_from_json(read_json_file(path), path.string());
}

Record merge_records(const Record& earlier, const Record& later, std::string_view origin) {
  const Json before = record_to_json(fixed_facts(earlier));
  const Json now = record_to_json(fixed_facts(later));
  for (const auto& [field, value] : before.items()) {
    if (value == now.at(field)) continue;
    throw_bad_input("{}: field \"{}\" is {} there and {} now: the two did not run on equal terms", origin, field,
                    value.dump(), now.at(field).dump());
  }
  Record merged = earlier;
  add_launches(later.key, merged.key);
  add_launches(later.value, merged.value);
  merged.ended = later.ended;
  return merged;
}

std::string argv_fingerprint(std::span<const std::string> argv) {
  Sha256 hash;
  bool skip = false;
  for (const std::string& argument : argv) {
    // The value of the option before it; another option means that there was none.
    if (std::exchange(skip, false) && !argument.starts_with("-")) continue;
    if (!argument.starts_with("-")) {
      add_argument(hash, argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string_view name = std::string_view(argument).substr(0, equals);
    if (!names_a_secret(name)) {
      add_argument(hash, argument);
      continue;
    }
    add_argument(hash, name);
    skip = equals == std::string::npos;
  }
  return hash.hex_digest();
}

std::string utc_timestamp(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04d}-{:02d}-{:02d}T{:02d}:{:02d}:{:02d}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace asymkv
