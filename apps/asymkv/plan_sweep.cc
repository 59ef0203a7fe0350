#include "plan_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/gate/arm.h"
#include "output_file.h"
#include "plan_plot.h"

namespace asymkv::app {
namespace {

constexpr int64_t kShortest = 1024;
constexpr int64_t kUnknownPositions = 131072;

std::vector<int64_t> contexts_of(const PlanOptions& options, const ModelShape& shape) {
  for (const int64_t context : options.contexts) {
    if (context < 1 || context > kMaxPlannedTokens) {
      throw_usage("--contexts {}: give 1 to {} tokens", context, kMaxPlannedTokens);
    }
  }
  if (!options.contexts.empty()) return options.contexts;
  const int64_t longest =
      shape.max_positions > 0 ? std::min(shape.max_positions, kMaxPlannedTokens) : kUnknownPositions;
  std::vector<int64_t> contexts;
  for (int64_t context = std::min(kShortest, longest); context <= longest; context *= 2) contexts.push_back(context);
  return contexts;
}

// What arms that take the same bytes have in common, for a label: "AF RF: K16/V8 or K8/V16, fixed scales".
struct Series {
  std::string arms;
  std::string formats;
  std::string scale;
};

std::string bits_of(const Json& arm) {
  const auto bits = [](const std::string& id) { return dtype_bytes(parse_dtype(id.substr(0, id.find('-')))) * 8; };
  return fmt::format("K{}/V{}", bits(arm.at("key").get<std::string>()), bits(arm.at("value").get<std::string>()));
}

// Arms with the same counts at every length are one line.
std::vector<std::pair<Series, std::vector<int64_t>>> distinct_series(const Json& sweep) {
  std::vector<std::pair<Series, std::vector<int64_t>>> lines;
  for (const Json& arm : sweep.at("arms")) {
    const auto name = arm.at("arm").get<std::string>();
    const std::string bits = bits_of(arm);
    std::vector<int64_t> counts;
    for (const Json& row : sweep.at("rows")) counts.push_back(row.at("sequences").at(name).get<int64_t>());
    const auto line = std::ranges::find_if(lines, [&](const auto& known) { return known.second == counts; });
    if (line == lines.end()) {
      lines.push_back({{name, bits, arm.at("scale").get<std::string>()}, counts});
    } else {
      line->first.arms += " " + name;
      if (line->first.formats.find(bits) == std::string::npos) line->first.formats += ", " + bits;
    }
  }
  return lines;
}

bool in_sweep(ArmId arm, const std::optional<bool>& has_key_bias) {
  if (arm_is_control(arm) && arm != ArmId::kN) return false;
  return !arm_needs_key_bias(arm) || has_key_bias.value_or(true);
}

// What the figures do not say by themselves.
Json sweep_notes(const PlanInputs& inputs, std::span<const int64_t> contexts) {
  std::vector<std::string_view> need_bias;
  for (const ArmId arm : all_arms()) {
    if (arm_needs_key_bias(arm) && !arm_is_control(arm)) need_bias.push_back(arm_name(arm));
  }
  Json notes = Json::array();
  if (!inputs.model.has_key_bias) {
    notes.push_back(fmt::format("whether its keys have a bias is not known: {} are served only if they have one",
                                fmt::join(need_bias, " ")));
  } else if (!*inputs.model.has_key_bias) {
    notes.push_back(fmt::format("its keys have no bias to take out: {} are left out", fmt::join(need_bias, " ")));
  }
  const int64_t positions = inputs.model.shape.max_positions;
  const bool is_beyond =
      positions > 0 && std::ranges::any_of(contexts, [&](int64_t tokens) { return tokens > positions; });
  if (is_beyond) notes.push_back(fmt::format("rows above {} tokens are longer than the model's positions", positions));
  return notes;
}

}  // namespace

Json sweep_plan(const PlanOptions& options, const PlanInputs& inputs) {
  const ModelShape& shape = inputs.model.shape;
  Json arms = Json::array(), rows = Json::array();
  const std::vector<int64_t> contexts = contexts_of(options, shape);
  for (const int64_t tokens : contexts) rows.push_back({{"tokens", tokens}});
  for (const ArmId arm : all_arms()) {
    if (!in_sweep(arm, inputs.model.has_key_bias)) continue;
    const KvFormat format = arm_format(arm, shape.native_dtype);
    const ScaleKind scale = format.scale() == ScaleKind::kFixed ? ScaleKind::kFixed : ScaleKind::kDynamic;
    const CachePlan plan = plan_of(options, inputs, format.id(), scale);
    arms.push_back({{"arm", arm_name(arm)},
                    {"key", format.key.id()},
                    {"value", format.value.id()},
                    {"scale", scale_kind_name(format.scale())},
                    {"bytes_per_token", plan.bytes_per_token()}});
    for (Json& row : rows) {
      row["sequences"][std::string(arm_name(arm))] =
          sequences_in_budget(plan, inputs.request, row.at("tokens").get<int64_t>());
    }
  }
  return {{"arms", arms}, {"rows", rows}, {"notes", sweep_notes(inputs, contexts)}};
}

void print_sweep(const Json& sweep) {
  print_note("sequences that fit at once, by length and arm\n{:>10}", "tokens");
  for (const Json& arm : sweep.at("arms")) print_note("{:>9}", arm.at("arm").get<std::string>());
  print_note("\n");
  for (const Json& row : sweep.at("rows")) {
    print_note("{:>10}", row.at("tokens").get<int64_t>());
    for (const Json& arm : sweep.at("arms")) {
      print_note("{:>9}", row.at("sequences").at(arm.at("arm").get<std::string>()).get<int64_t>());
    }
    print_note("\n");
  }
  for (const Json& note : sweep.at("notes")) print_note("  {}\n", note.get<std::string>());
}

void check_plot_file(const std::filesystem::path& path) {
  if (path.extension() != ".svg" && path.extension() != ".png") {
    throw_usage("--plot {}: name a file that ends in .svg or .png", path.string());
  }
  check_output_file(path, "--plot");
}

void plot_sweep(const Json& sweep, const std::string& title, const std::filesystem::path& path) {
  Plot plot;
  plot.title = title;
  plot.x_label = "tokens of one sequence";
  plot.y_label = "sequences that fit at once";
  for (const auto& [series, counts] : distinct_series(sweep)) {
    PlotSeries line;
    line.label = fmt::format("{} ({})", series.formats, series.arms);
    if (series.scale != "none")
      line.label = fmt::format("{}, {} scales ({})", series.formats, series.scale, series.arms);
    line.dashed = series.scale == "dynamic";
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] < 1) continue;  // no place on a logarithmic axis: the line ends
      line.points.emplace_back(static_cast<double>(sweep.at("rows")[i].at("tokens").get<int64_t>()),
                               static_cast<double>(counts[i]));
    }
    plot.series.push_back(std::move(line));
  }
  write_plot(plot, path);
}

}  // namespace asymkv::app
