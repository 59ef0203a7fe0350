#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "asymkv/gate/report_html.h"
#include "asymkv/gate/report_sections.h"

// Tables of the report: what was tested, formats, retrieval with its heat map, answers, loss, noise floor.
namespace asymkv::report_sections {
namespace {

using namespace report_html;  // NOLINT: the vocabulary of this file

constexpr int kDepthBuckets = 10;

std::string row_header(const ReportInputs& in, const ArmJudgement& judged) {
  return judged.arm == ArmId::kN2 ? "N2 <small>native again</small>" : html_escape(judged_label(in.judgement, judged));
}

// The verdict of a row; the noise floor has none, as it decides nothing.
std::string verdict_cell(ArmId arm, stats::Verdict verdict) {
  return arm == ArmId::kN2 ? std::string("<small>control</small>") : badge(verdict);
}

std::string exact_id(ArmId arm, const RunIdentity& identity) {
  return arm_format(arm, parse_dtype(identity.native_dtype)).id();
}

std::string needed_cell(const std::optional<int64_t>& needed) {
  return needed ? grouped(*needed) : std::string();
}

std::string panel_table(const ReportInputs& in) {
  Table table("Panels, fixed before the first case", {"panel", "cases", "passes when", "native floor", "native result"},
              true);
  const Protocol& p = in.run.protocol;
  const ArmJudgement* first = in.judgement.arms.empty() ? nullptr : &in.judgement.arms.front();
  for (size_t i = 0; i < p.retrieval.size(); ++i) {
    const RetrievalPanel& panel = p.retrieval[i];
    table.add_row(
        {fmt::format("retrieval at {} tokens", grouped(panel.length)), grouped(panel.count),
         fmt::format("upper bound of lost needles &#8804; {}", percent(panel.limit, 1)), percent(panel.native_floor, 0),
         first ? part_of(first->retrieval[i].pairs.control_correct, first->retrieval[i].pairs.counts.n) : ""});
  }
  if (p.math) {
    table.add_row(
        {fmt::format("math answers ({} parser)", answer_parser_name(p.math->parser)), grouped(p.math->count),
         fmt::format("preservation: upper bound of lost answers &#8804; {}; aggregate: lower bound of net change "
                     "&#8805; {}",
                     percent(p.margins.preservation_limit, 1), points(p.margins.aggregate_margin)),
         percent(p.math->native_floor, 0),
         first && first->math ? part_of(first->math->pairs.control_correct, first->math->pairs.counts.n) : ""});
  }
  for (const LossPanel& panel : p.loss) {
    table.add_row({fmt::format("loss, {} tokens a document", grouped(panel.document_tokens)), grouped(panel.documents),
                   fmt::format("upper bound of the loss ratio &#8804; {}", signed_percent(p.margins.loss_limit, 1)), "",
                   ""});
  }
  return table.html();
}

std::string definition(std::string_view name, const std::string& value_html) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>", name, value_html);
}

// [bucket] -> {lost, native-correct} of one arm and panel.
struct DepthCounts {
  std::array<int64_t, kDepthBuckets> lost{};
  std::array<int64_t, kDepthBuckets> native_correct{};
};

DepthCounts count_depths(const Run& run, const ArmJudgement& judged, const std::string& panel) {
  const auto outcomes = [&run](ArmId id) -> const std::vector<Outcome>& {
    return run.outcomes[static_cast<size_t>(std::ranges::find(run.arms, id) - run.arms.begin())];
  };
  const std::vector<Outcome>& native = outcomes(judged.control);
  const std::vector<Outcome>& candidate = outcomes(judged.arm);
  DepthCounts counts;
  for (size_t i = 0; i < std::min(native.size(), candidate.size()); ++i) {
    if (run.cases[i].panel != panel || native[i].failed || candidate[i].failed || !native[i].correct) continue;
    const double place = std::clamp(run.cases[i].depth, 0.0, 1.0) * kDepthBuckets;
    const size_t bucket = std::min<size_t>(static_cast<size_t>(place), kDepthBuckets - 1);
    ++counts.native_correct[bucket];
    counts.lost[bucket] += candidate[i].correct ? 0 : 1;
  }
  return counts;
}

std::string heat_cell(int64_t lost, int64_t native_correct) {
  if (native_correct == 0) return "<td class=\"zero\">&#8211;</td>";
  const std::string text = fmt::format("{}/{}", lost, native_correct);
  if (lost == 0) return fmt::format("<td class=\"zero\">{}</td>", text);
  return fmt::format("<td class=\"heat\" style=\"--s:{:.3f}\">{}</td>",
                     0.15 + 0.85 * static_cast<double>(lost) / static_cast<double>(native_correct), text);
}

std::string heat_map(const ReportInputs& in) {
  const std::string caption =
      "Needles lost by depth: lost / native-correct cases in each tenth of the context (0 % is its beginning). The "
      "deeper "
      "the red, the larger the share lost.";
  std::string html = fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Needles lost by depth\"><table "
      "class=\"heatmap\"><caption>{}</caption><thead><tr><th scope=\"col\">arm</th><th scope=\"col\">tokens</th>",
      caption);
  for (int i = 0; i < kDepthBuckets; ++i) {
    html += fmt::format("<th scope=\"col\">{}&#8211;{}&nbsp;%</th>", 100 * i / kDepthBuckets,
                        100 * (i + 1) / kDepthBuckets);
  }
  html += "</tr></thead><tbody>\n";
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    for (const RetrievalJudgement& panel : arm->retrieval) {
      html += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td>", row_header(in, *arm), grouped(panel.length));
      const DepthCounts counts = count_depths(in.run, *arm, panel.pairs.panel);
      for (size_t i = 0; i < kDepthBuckets; ++i) html += heat_cell(counts.lost[i], counts.native_correct[i]);
      html += "</tr>\n";
    }
  }
  return html + "</tbody></table></div>\n";
}

std::string discordance(const PanelPairs& pairs) {
  return fmt::format("{} of {} answers changed ({} lost, {} gained)", pairs.counts.lost + pairs.counts.gained,
                     grouped(pairs.counts.n), pairs.counts.lost, pairs.counts.gained);
}

}  // namespace

std::string tested(const ReportInputs& in) {
  const RunIdentity& id = in.run.identity;
  const Protocol& p = in.run.protocol;
  std::string html = "<dl class=\"kv\">";
  html += definition("Model", isolated(id.model));
  html += definition("Weights (SHA-256)", code(id.model_sha256));
  html += definition("Protocol", fmt::format("{}, {} class, {}", isolated(p.name),
                                             protocol_class_name(p.protocol_class), code(in.run.protocol_sha256)));
  html += definition("Deciding objective", fmt::format("{} (the other one is reported)", objective_name(p.objective)));
  html += definition("Each bound", alpha_words(p) + " (the divisor was fixed before the run)");
  html += definition(
      "Worker and path",
      fmt::format(
          "{}, {} path, {} prefill, {}", isolated(id.worker), run_path_name(p.path), prefill_name(p.prefill),
          p.chunk_tokens == 0 ? "a prompt part in one chunk" : "chunks of " + grouped(p.chunk_tokens) + " tokens"));
  if (p.pool_limit_bytes != 0) {
    html += definition("Memory limit", grouped(p.pool_limit_bytes) + " bytes for the caches of all arms together");
  }
  if (p.process_limit_bytes != 0) {
    html += definition("Memory limit of the process", grouped(p.process_limit_bytes) + " bytes, kept");
  }
  if (p.device_limit_bytes != 0) {
    html += definition("Memory limit of the GPU", grouped(p.device_limit_bytes) + " bytes, kept");
  }
  html += definition("Native type", html_escape(id.native_dtype));
  const bool looks = in.run.protocol.looks != Looks();
  html += definition("Cases",
                     grouped(std::ssize(in.run.cases)) +
                         (looks ? ", asked look by look until an arm's verdict is clear" : ", answered by every arm") +
                         ": all comparisons are paired");
  html += "</dl>\n" + panel_table(in);
  html +=
      "<p class=\"note\"><strong>Preservation</strong> asks how many answers that native gives right are lost. "
      "<strong>Aggregate</strong> asks how much the share of right answers changes when gains may make up for losses. "
      "Neither is always the stricter one. Both also need retrieval at every length and prediction loss to pass.</p>\n";
  return section("tested", "What was tested", html);
}

// "yes", and where a protocol has several looks the one at which the arm stopped.
std::string certified_cell(const ArmJudgement& arm) {
  const std::string look = arm.num_looks > 1 ? fmt::format(", at look {} of {}", arm.look, arm.num_looks) : "";
  return (arm.certified ? "yes" : "no") + look;
}

std::string arms(const ReportInputs& in) {
  const int64_t native = in.bytes_per_token.at(ArmId::kN);
  Table table("Stored formats and verdicts", {"arm", "stored", "exact id, keys/values", "bytes per token", "saved",
                                              "preservation", "aggregate", "certified"});
  table.add_row({"N", html_escape(arm_description(ArmId::kN)), code(exact_id(ArmId::kN, in.run.identity)),
                 grouped(native), percent(0, 1), "<small>control</small>", "<small>control</small>", ""});
  for (const ArmJudgement& arm : in.judgement.arms) {
    const int64_t bytes = in.bytes_per_token.at(arm.arm);
    table.add_row({row_header(in, arm), html_escape(arm_description(arm.arm)), code(exact_id(arm.arm, in.run.identity)),
                   grouped(bytes), percent(1.0 - static_cast<double>(bytes) / static_cast<double>(native), 1),
                   badge(arm.preservation), badge(arm.aggregate), certified_cell(arm)});
  }
  return section("arms", "Formats and verdicts", table.html());
}

std::string retrieval(const ReportInputs& in) {
  if (in.run.protocol.retrieval.empty())
    return section("retrieval", "Retrieval", paragraph("This protocol has no retrieval panel."));
  Table table("Retrieval: a number hidden in a long text, asked for afterwards",
              {"arm", "tokens", "native right", "arm right", "lost", "gained", "loss, upper bound", "limit", "verdict",
               "cases a pass would need"});
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    for (const RetrievalJudgement& panel : arm->retrieval) {
      const PanelPairs& pairs = panel.pairs;
      const auto& bound = panel.bound;
      table.add_row(
          {row_header(in, *arm), grouped(panel.length), part_of(pairs.control_correct, pairs.counts.n),
           part_of(pairs.candidate_correct, pairs.counts.n), grouped(pairs.counts.lost), grouped(pairs.counts.gained),
           bound ? fmt::format("{}, &#8804; {}", percent(bound->gross_loss), percent(bound->upper)) : "no bound",
           bound ? percent(bound->limit, 1) : "", verdict_cell(arm->arm, panel.verdict), needed_cell(panel.needed)});
    }
  }
  return section("retrieval", "Retrieval", table.html() + "<h3>By length and depth</h3>\n" + heat_map(in));
}

std::string answers(const ReportInputs& in) {
  if (!in.run.protocol.math) return section("answers", "Answers", paragraph("This protocol has no math panel."));
  Table table("Math answers against native",
              {"arm", "native right", "arm right", "lost", "gained", "gross loss, upper bound", "preservation",
               "net change, lower bound", "aggregate", "cases a pass would need", "right by the other parser"});
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    if (!arm->math) continue;
    const MathJudgement& math = *arm->math;
    const PanelPairs& pairs = math.pairs;
    const auto& gross = math.preservation_bound;
    const auto& net = math.aggregate_bound;
    std::string needed = needed_cell(math.preservation_needed);
    if (math.aggregate_needed)
      needed += (needed.empty() ? "" : ", ") + grouped(*math.aggregate_needed) + " (aggregate)";
    table.add_row(
        {row_header(in, *arm), part_of(pairs.control_correct, pairs.counts.n),
         part_of(pairs.candidate_correct, pairs.counts.n), grouped(pairs.counts.lost), grouped(pairs.counts.gained),
         gross ? fmt::format("{}, &#8804; {}", percent(gross->gross_loss), percent(gross->upper)) : "no bound",
         verdict_cell(arm->arm, math.preservation),
         net ? fmt::format("{}, &#8805; {}", points(net->net_change), points(net->lower)) : "no bound",
         verdict_cell(arm->arm, math.aggregate), needed,
         fmt::format("{} (native {})", pairs.alt_candidate_correct, pairs.alt_control_correct)});
  }
  const Margins& margins = in.run.protocol.margins;
  return section(
      "answers", "Answers",
      table.html() + fmt::format("<p class=\"note\">Verdicts here are those of this panel alone. Preservation "
                                 "passes at an upper bound of at most {}, aggregate at a lower bound of at least "
                                 "{}.</p>\n",
                                 percent(margins.preservation_limit, 1), points(margins.aggregate_margin)));
}

std::string loss(const ReportInputs& in) {
  if (in.run.protocol.loss.empty())
    return section("loss", "Prediction loss", paragraph("This protocol has no loss panel."));
  Table table("Mean loss against native, paired bootstrap over documents",
              {"arm", "tokens", "documents", "change", "lower bound", "upper bound", "limit", "verdict",
               "share of the largest document", "change with one document left out", "document that moves it most"});
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    for (const LossJudgement& panel : arm->loss) {
      std::vector<std::string> row = {row_header(in, *arm), grouped(panel.document_tokens), grouped(panel.documents)};
      if (panel.bound) {
        const stats::LossRatio& ratio = panel.bound->ratio;
        row.insert(row.end(), {signed_percent(ratio.ratio_minus_1, 3), signed_percent(ratio.lower, 3),
                               signed_percent(ratio.upper, 3), signed_percent(panel.bound->limit, 1)});
      } else {
        row.insert(row.end(), {"no bound", "", "", ""});
      }
      row.push_back(verdict_cell(arm->arm, panel.verdict));
      row.push_back(panel.bound ? percent(panel.bound->ratio.largest_delta_share, 0) : "");
      row.push_back(panel.leave_one_out ? fmt::format("{} to {}", signed_percent(panel.leave_one_out->lowest, 3),
                                                      signed_percent(panel.leave_one_out->highest, 3))
                                        : "");
      row.push_back(html_escape(panel.most_moving_case));
      table.add_row(row);
    }
  }
  return section("loss", "Prediction loss", table.html() + "<h3>Document by document</h3>\n" + documents(in));
}

std::string noise_floor(const ReportInputs& in) {
  if (!in.judgement.noise_floor) {
    return section("noise", "Noise floor",
                   paragraph("This protocol does not run native twice, so the noise floor is unknown."));
  }
  const ArmJudgement& floor = *in.judgement.noise_floor;
  std::string items;
  for (const RetrievalJudgement& panel : floor.retrieval) {
    items += fmt::format("<li>retrieval at {} tokens: {}</li>", grouped(panel.length), discordance(panel.pairs));
  }
  if (floor.math) items += fmt::format("<li>math: {}</li>", discordance(floor.math->pairs));
  for (const LossJudgement& panel : floor.loss) {
    double largest = 0;
    for (const double delta : panel.document_deltas) largest = std::max(largest, delta < 0 ? -delta : delta);
    items += fmt::format("<li>loss at {} tokens: largest change of one document {:.2g} nats per token</li>",
                         grouped(panel.document_tokens), largest);
  }
  return section(
      "noise", "Noise floor",
      "<p>Native answered every case twice, the second time (N2) with the cases of each batch rotated. What "
      "changed between the two has nothing to do with any format; smaller losses than these say nothing about "
      "a format either.</p>\n<ul>" +
          items + "</ul>\n");
}

}  // namespace asymkv::report_sections
