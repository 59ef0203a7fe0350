// asymkv doctor: devices, kernel families, and every format x geometry x phase they serve, or why not.

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "asymkv/base/parallel.h"
#include "asymkv/runtime/backends.h"
#include "command.h"

namespace asymkv::app {
namespace {

struct DoctorArguments {
  bool json = false;
};

constexpr const char* kFormats[] = {"bf16/bf16", "f16/f16",           "f32/f32", "bf16/e4m3",      "e4m3/bf16",
                                    "e4m3/e4m3", "e4m3-prebias/e4m3", "i8/e4m3", "i8-prebias/e4m3"};
constexpr int64_t kHeadDims[] = {64, 80, 96, 128, 192, 256};
constexpr int64_t kGroups[] = {1, 2, 4, 5, 6, 7, 8, 16};
constexpr Phase kPhases[] = {Phase::kWrite, Phase::kDecode, Phase::kPrefill, Phase::kMixed};

Json support_rows(const AttentionBackend& backend, const std::string& device) {
  Json rows = Json::array();
  for (const char* text : kFormats) {
    const KvFormat format = parse_kv_format(text, DType::kBF16, ScaleKind::kDynamic);
    for (const int64_t head_dim : kHeadDims) {
      for (const int64_t group : kGroups) {
        for (const Phase phase : kPhases) {
          const Support support = backend.supports({1, head_dim, head_dim, 16}, format, group, phase);
          rows.push_back({{"device", device},
                          {"key", format.key.id()},
                          {"value", format.value.id()},
                          {"head_dim", head_dim},
                          {"group", group},
                          {"phase", phase_name(phase)},
                          {"ok", support.ok},
                          {"kernel", support.kernel},
                          {"reason", support.reason}});
        }
      }
    }
  }
  return rows;
}

void print_human(const Json& answer) {
  fmt::print("devices\n");
  for (const Json& device : answer.at("devices")) {
    fmt::print("  {:<5} {} threads\n", device.at("name").get<std::string>(), device.at("threads").get<int64_t>());
  }
  fmt::print("kernel families\n");
  for (const Json& backend : answer.at("backends")) {
    fmt::print("  {:<5} {}\n", backend.at("name").get<std::string>(),
               backend.at("available").get<bool>() ? backend.at("kernels").get<std::string>()
                                                   : "not available: " + backend.at("reason").get<std::string>());
  }
  int64_t ok = 0;
  for (const Json& row : answer.at("support")) ok += row.at("ok").get<bool>() ? 1 : 0;
  fmt::print("support: {} of {} combinations of format, head_dim, group and phase\n", ok, answer.at("support").size());
  for (const Json& row : answer.at("support")) {
    if (row.at("ok").get<bool>()) continue;
    fmt::print("  no: {} {}/{} head_dim {} group {} {}: {}\n", row.at("device").get<std::string>(),
               row.at("key").get<std::string>(), row.at("value").get<std::string>(), row.at("head_dim").get<int64_t>(),
               row.at("group").get<int64_t>(), row.at("phase").get<std::string>(), row.at("reason").get<std::string>());
  }
}

int run(const DoctorArguments& args) {
  Json answer = {{"devices", {{{"name", "cpu"}, {"threads", num_threads()}}}},
                 {"backends", Json::array()},
                 {"support", Json::array()}};
  for (const BackendChoice& choice : list_backends()) {
    Json row = {{"name", choice.name}, {"available", choice.available}, {"reason", choice.reason}};
    if (choice.available) {
      const Backends backends = select_backends(choice.name);
      row["kernels"] = fmt::format("attention {}, model {}", backends.attention->name(), backends.model->name());
      for (Json& support : support_rows(*backends.attention, choice.name))
        answer["support"].push_back(std::move(support));
    }
    answer["backends"].push_back(std::move(row));
  }
  if (args.json) {
    print_json(answer);
  } else {
    print_human(answer);
  }
  return 0;
}

}  // namespace

void add_doctor_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<DoctorArguments>();
  CLI::App* command = root.add_subcommand("doctor", "devices, kernel families and what they support");
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer("Example:\n  asymkv doctor --json");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
