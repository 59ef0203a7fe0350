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

// Exact ids only: "auto" and "fp8" say nothing about what is stored.
constexpr std::array<std::string_view, 7> kOurFormats = {"bf16",         "f16", "f32",       "e4m3",
                                                         "e4m3-prebias", "i8",  "i8-prebias"};
// What engines that emit this record themselves may store besides, from version 2 on.
constexpr std::array<std::string_view, 19> kEveryFormat = {
    "bf16", "f16",   "f32",   "e4m3", "e4m3-prebias", "i8",   "i8-prebias", "e5m2", "e4m3fnuz", "e5m2fnuz",
    "i4",   "nvfp4", "mxfp4", "q8_0", "q5_1",         "q5_0", "q4_1",       "q4_0", "iq4_nl"};
constexpr std::array<std::string_view, 3> kOurScales = {"none", "fixed", "dynamic"};
constexpr std::array<std::string_view, 4> kEveryScale = {"none", "fixed", "dynamic", "block"};

std::string word(JsonFields& fields, const std::string& field, std::span<const std::string_view> known) {
  std::string text = fields.text(field);
  if (std::ranges::find(known, text) != known.end()) return text;
  std::string list;
  for (const std::string_view candidate : known) list += fmt::format(" {}", candidate);
  fields.fail(field, fmt::format("is \"{}\"; known:{}", text, list));
}

std::string word(JsonFields& fields, const std::string& field, std::initializer_list<std::string_view> known) {
  return word(fields, field, std::span(known.begin(), known.size()));
}

int64_t size_field(JsonFields& fields, const std::string& field, int64_t least) {
  const int64_t value = fields.integer(field);
  if (value < least) fields.fail(field, fmt::format("is {}, below {}", value, least));
  return value;
}

// What a side may say: ours, or anybody's.
struct SideWords {
  std::span<const std::string_view> formats;
  std::span<const std::string_view> scales;
};

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

AllocatedSide allocated_from(JsonFields fields, const SideWords& words) {
  AllocatedSide allocated;
  allocated.format = word(fields, "format", words.formats);
  allocated.scale = word(fields, "scale", words.scales);
  allocated.page_bytes = size_field(fields, "page_bytes", 1);
  allocated.scale_bytes = size_field(fields, "scale_bytes", 0);
  allocated.payload_bytes = size_field(fields, "payload_bytes", 0);
  fields.finish();
  return allocated;
}

LaunchedKernel launched_from(JsonFields fields, const SideWords& words) {
  LaunchedKernel kernel;
  kernel.family = fields.text("family");
  kernel.instance = fields.text("instance");
  kernel.format = word(fields, "format", words.formats);
  kernel.build = fields.text("build");
  kernel.count = size_field(fields, "count", 1);
  fields.finish();
  return kernel;
}

SideFacts side_from(JsonFields fields, const SideWords& words) {
  SideFacts side;
  if (!says(fields.raw("requested"), kUnset)) side.requested = fields.text("requested");
  if (!says(fields.raw("resolved"), kUnknown)) side.resolved = word(fields, "resolved", words.formats);
  if (!says(fields.raw("allocated"), kUnknown)) side.allocated = allocated_from(fields.object("allocated"), words);
  if (!says(fields.raw("launched"), kUnknown)) {
    for (JsonFields& kernel : fields.objects("launched")) {
      side.launched.push_back(launched_from(std::move(kernel), words));
    }
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

// From version 2 on a record of somebody else's run may leave open what it does not know.
std::string open_word(JsonFields& fields, const std::string& field, int64_t version,
                      std::initializer_list<std::string_view> known) {
  if (version > 1 && says(fields.raw(field), kUnknown)) return std::string(kUnknown);
  return word(fields, field, known);
}

Record::Scales scales_from(JsonFields fields, int64_t version) {
  Record::Scales scales;
  scales.source = open_word(fields, "source", version, {"none", "checkpoint", "calibrated", "dynamic", "unit"});
  scales.sha256 = nullable_hash(fields, "sha256");
  scales.epoch = size_field(fields, "epoch", 0);
  if (scales.source == "calibrated" && scales.sha256.empty()) {
    fields.fail("sha256", "is null, but calibrated scales come from a file");
  }
  fields.finish();
  return scales;
}

Record::Transform transform_from(JsonFields fields, int64_t version) {
  Record::Transform transform;
  transform.kind = open_word(fields, "kind", version, {"none", "key_bias_removed"});
  transform.sha256 = nullable_hash(fields, "sha256");
  if ((transform.kind != "key_bias_removed") != transform.sha256.empty()) {
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

Json launch_to_json(const Record::Launch& launch) {
  return {{"split", text_or_null(launch.split)},
          {"mode", launch.mode},
          {"batch", launch.batch},
          {"threads", launch.threads}};
}

Record::Launch launch_from(JsonFields fields, int64_t version) {
  Record::Launch launch;
  launch.split = nullable_text(fields, "split");
  launch.mode = open_word(fields, "mode", version, {"eager", "graph"});
  launch.batch = size_field(fields, "batch", 0);
  if (version > 1) launch.threads = size_field(fields, "threads", 0);
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

// Version 1 knew no other engine that tells its own facts.
void check_imported(const Record& record, const JsonFields& fields) {
  const bool foreign = record.version == 1 ? record.engine != kOurEngine : !record.imported_from.empty();
  if (!foreign) return;
  const std::string field = record.version == 1 ? "engine" : "imported_from";
  for (const SideFacts* side : {&record.key, &record.value}) {
    if (side->resolved || side->allocated || !side->launched.empty()) {
      fields.fail(field, fmt::format("is \"{}\", and an imported record may carry what was requested, nothing more",
                                     record.version == 1 ? record.engine : record.imported_from));
    }
  }
}

void read_engine(JsonFields& fields, Record& record) {
  record.engine = fields.text("engine");
  if (record.engine.empty()) fields.fail("engine", "is empty");
  record.engine_version = nullable_text(fields, "engine_version");
  if (record.version > 1) record.imported_from = nullable_text(fields, "imported_from");
}

Record read_version(int64_t version, JsonFields fields) {
  Record record;
  record.version = version;
  fields.text("schema");
  read_engine(fields, record);
  const bool ours = version == 1 || record.engine == kOurEngine;
  const SideWords words = ours ? SideWords{kOurFormats, kOurScales} : SideWords{kEveryFormat, kEveryScale};
  record.key = side_from(fields.object("key"), words);
  record.value = side_from(fields.object("value"), words);
  record.model = model_from(fields.object("model"));
  record.scales = scales_from(fields.object("scales"), version);
  record.transform = transform_from(fields.object("transform"), version);
  record.layout = layout_from(fields.object("layout"));
  if (version > 1) record.worker = nullable_text(fields, "worker");
  record.device = device_from(fields.object("device"));
  record.build = build_from(fields.object("build"));
  record.launch = launch_from(fields.object("launch"), version);
  record.protocol_sha256 = nullable_hash(fields, "protocol_sha256");
  record.argv_sha256 = nullable_hash(fields, "argv_sha256");
  record.started = timestamp_field(fields, "started");
  record.ended = timestamp_field(fields, "ended");
  fields.finish();
  check_imported(record, fields);
  return record;
}

Json all_fields(const Record& record) {
  return {{"schema", record_schema_name(record.version)},
          {"engine", record.engine},
          {"engine_version", text_or_null(record.engine_version)},
          {"imported_from", text_or_null(record.imported_from)},
          {"key", side_to_json(record.key)},
          {"value", side_to_json(record.value)},
          {"model", model_to_json(record.model)},
          {"scales",
           {{"source", record.scales.source},
            {"sha256", text_or_null(record.scales.sha256)},
            {"epoch", record.scales.epoch}}},
          {"transform", {{"kind", record.transform.kind}, {"sha256", text_or_null(record.transform.sha256)}}},
          {"layout", {{"id", text_or_null(record.layout.id)}, {"page_size", record.layout.page_size}}},
          {"worker", text_or_null(record.worker)},
          {"device", device_to_json(record.device)},
          {"build", {{"hash", text_or_null(record.build.hash)}, {"compiler", text_or_null(record.build.compiler)}}},
          {"launch", launch_to_json(record.launch)},
          {"protocol_sha256", text_or_null(record.protocol_sha256)},
          {"argv_sha256", text_or_null(record.argv_sha256)},
          {"started", text_or_null(record.started)},
          {"ended", text_or_null(record.ended)}};
}

// ---------------------------------------------------------------- merging

// What two processes of one run must agree on: everything but how much ran, when, on which machine with the same
// kernels, and how it was called. Version 1 had the kernels in the machine's name.
Record fixed_facts(Record record) {
  if (record.version > 1) record.device.name = record.device.driver = std::string();
  record.launch.threads = record.launch.batch = 0;
  // A process without a decode step replays none.
  if (record.launch.mode == "graph") record.launch.mode = "eager";
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

// "A", or "A; B" where `names` does not name B yet.
std::string both_names(const std::string& names, const std::string& name) {
  const bool known = fmt::format("; {}; ", names).find(fmt::format("; {}; ", name)) != std::string::npos;
  return known ? names : fmt::format("{}; {}", names, name);
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

std::string_view launch_query(std::string_view instance) {
  const size_t mark = instance.find(kQueryMark);
  return mark == std::string_view::npos ? "" : instance.substr(mark + kQueryMark.size());
}

bool is_launch_of(std::string_view instance, std::string_view phase, std::string_view query) {
  return instance.starts_with(fmt::format("{}:", phase)) && launch_query(instance) == query;
}

std::string record_schema_name(int64_t version) {
  return fmt::format("asymkv.record/{}", version);
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
  Json json = all_fields(record);
  if (record.version == 1) {
    for (const char* field : {"imported_from", "worker"}) json.erase(field);
    json["launch"].erase("threads");
  }
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
  for (int64_t version = 1; version <= kRecordVersion; ++version) {
    if (schema == record_schema_name(version)) return read_version(version, std::move(fields));
  }
  throw_unsupported("{}: field \"schema\" is \"{}\"; this program reads {} to {}", origin, schema,
                    record_schema_name(1), record_schema_name(kRecordVersion));
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
  if (merged.version > 1) {
    merged.device.name = both_names(earlier.device.name, later.device.name);
    merged.device.driver = both_names(earlier.device.driver, later.device.driver);
  }
  if (earlier.launch.threads != later.launch.threads) merged.launch.threads = 0;
  merged.launch.batch = std::max(earlier.launch.batch, later.launch.batch);
  if (later.launch.mode == "graph") merged.launch.mode = "graph";
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

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

std::string utc_timestamp(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04d}-{:02d}-{:02d}T{:02d}:{:02d}:{:02d}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace asymkv
