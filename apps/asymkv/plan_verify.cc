#include "plan_verify.h"

#include <fmt/format.h>

#include "asymkv/base/progress.h"
#include "asymkv/gate/arm.h"
#include "asymkv/planner/capacity_verify.h"

namespace asymkv::app {
namespace {

Json growth_json(const std::optional<ProcessGrowth>& growth) {
  if (!growth) return nullptr;
  return {{"planned", growth->planned},
          {"mapped", growth->mapped},
          {"resident", growth->resident},
          {"tolerance", growth->tolerance},
          {"ok", growth->ok()}};
}

Json device_json(const std::vector<DeviceGrowth>& device) {
  Json terms = Json::array();
  for (const DeviceGrowth& growth : device) {
    terms.push_back({{"term", growth.term},
                     {"planned", growth.planned},
                     {"found", growth.found},
                     {"tolerance", growth.tolerance},
                     {"ok", growth.ok()}});
  }
  return terms;
}

Json result_json(const VerifyResult& result, const KvFormat& format, std::string_view name) {
  Json lines = Json::array();
  for (const VerifyLine& line : result.lines) {
    lines.push_back({{"term", line.term}, {"planned", line.planned}, {"found", line.found}});
  }
  return {{"format", name},
          {"key", format.key.id()},
          {"value", format.value.id()},
          {"scale", scale_kind_name(format.scale())},
          {"ok", result.ok()},
          {"difference_bytes", result.difference_bytes()},
          {"lines", lines},
          {"growth", growth_json(result.growth)},
          {"device", device_json(result.device)}};
}

// "native", or an arm's name and its format.
struct NamedFormat {
  std::string name;
  std::string kv;
  ScaleKind scale;
};

std::vector<NamedFormat> formats_of(const PlanOptions& options, DType native) {
  if (options.kv != "all") return {{options.kv, options.kv, scale_of(options)}};
  std::vector<NamedFormat> formats;
  for (const ArmId arm : all_arms()) {
    if (arm_is_control(arm) && arm != ArmId::kN) continue;
    const KvFormat format = arm_format(arm, native);
    const ScaleKind scale = format.scale() == ScaleKind::kFixed ? ScaleKind::kFixed : ScaleKind::kDynamic;
    formats.push_back({std::string(arm_name(arm)), format.id(), scale});
  }
  return formats;
}

}  // namespace

Json verify_plan(const PlanOptions& options, const PlanInputs& inputs) {
  Json formats = Json::array();
  bool ok = true;
  int64_t difference = 0;
  for (const NamedFormat& named : formats_of(options, inputs.model.shape.native_dtype)) {
    const CachePlan plan = plan_of(options, inputs, named.kv, named.scale);
    const VerifyResult result = verify_allocation(plan, options.pages, memory_of(options), inputs.terms.staging);
    const KvFormat format = parse_kv_format(named.kv, inputs.model.shape.native_dtype, named.scale);
    formats.push_back(result_json(result, format, named.name));
    ok = ok && result.ok();
    difference += result.difference_bytes();
  }
  return {{"pages", options.pages}, {"ok", ok}, {"difference_bytes", difference}, {"formats", formats}};
}

void print_verification(const Json& verification) {
  print_note("verified with {} pages allocated for real\n", verification.at("pages").get<int64_t>());
  for (const Json& format : verification.at("formats")) {
    int64_t bytes = 0;
    for (const Json& line : format.at("lines")) {
      const auto planned = line.at("planned").get<int64_t>(), found = line.at("found").get<int64_t>();
      const auto term = line.at("term").get<std::string>();
      if (!term.ends_with("pages") && !term.ends_with("slots")) bytes += found;
      if (planned != found) print_note("  {}: planned {}, found {}\n", term, planned, found);
    }
    print_note("  {:<8} {:<20} scales {:<8} {:>12} bytes, difference {}", format.at("format").get<std::string>(),
               fmt::format("{}/{}", format.at("key").get<std::string>(), format.at("value").get<std::string>()),
               format.at("scale").get<std::string>(), bytes, format.at("difference_bytes").get<int64_t>());
    if (const Json& growth = format.at("growth"); !growth.is_null()) {
      print_note("; process grew by {} mapped, {} resident (planned {}, tolerance {}){}",
                 growth.at("mapped").get<int64_t>(), growth.at("resident").get<int64_t>(),
                 growth.at("planned").get<int64_t>(), growth.at("tolerance").get<int64_t>(),
                 growth.at("ok").get<bool>() ? "" : ": DIFFERS");
    }
    for (const Json& term : format.at("device")) {
      print_note("; the device gave {} for {} (planned {}, tolerance {}){}", term.at("found").get<int64_t>(),
                 term.at("term").get<std::string>(), term.at("planned").get<int64_t>(),
                 term.at("tolerance").get<int64_t>(), term.at("ok").get<bool>() ? "" : ": DIFFERS");
    }
    print_note("\n");
  }
}

}  // namespace asymkv::app
