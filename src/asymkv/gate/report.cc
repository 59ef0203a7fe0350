#include "asymkv/gate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/report_html.h"
#include "asymkv/gate/report_sections.h"
#include "asymkv/gate/run_files.h"

namespace asymkv {
namespace report_sections {
namespace {

using namespace report_html;  // NOLINT: the vocabulary of this file
using stats::Verdict;

std::string headline(const PolicyDecision& policy) {
  if (policy.tier == Tier::kK8V8) return "K8/V8 is admitted: 8-bit keys and 8-bit values";
  if (policy.tier == Tier::kNative) return "Keep the native cache: nothing smaller is admitted";
  if (policy.certified) return "K16/V8 is admitted: native keys and 8-bit values";
  return "K16/V8 is the default for these fragile keys, but it is not certified";
}

std::string bound_words(const stats::GrossLossVerdict& bound, std::string_view what) {
  return fmt::format("{} of {} {} lost, upper bound {} (limit {})", grouped(bound.counts.lost), grouped(bound.counts.n),
                     what, percent(bound.upper), percent(bound.limit, 1));
}

// Every bound behind one arm's verdict on the deciding objective, as list items.
std::string evidence(const ArmJudgement& arm, Objective objective) {
  std::vector<std::string> parts;
  if (arm.math && objective == Objective::kPreservation && arm.math->preservation_bound) {
    parts.push_back(bound_words(*arm.math->preservation_bound, "math answers"));
  } else if (arm.math && arm.math->aggregate_bound) {
    const auto& bound = *arm.math->aggregate_bound;
    parts.push_back(fmt::format("net change of {} math answers {}, lower bound {} (margin {})", grouped(bound.counts.n),
                                points(bound.net_change), points(bound.lower), points(bound.margin)));
  }
  for (const RetrievalJudgement& panel : arm.retrieval) {
    if (!panel.bound) continue;
    parts.push_back(bound_words(*panel.bound, fmt::format("needles at {} tokens", grouped(panel.length))));
  }
  for (const LossJudgement& panel : arm.loss) {
    if (!panel.bound) continue;
    parts.push_back(fmt::format("prediction loss {} over {} documents of {} tokens, upper bound {} (limit {})",
                                signed_percent(panel.bound->ratio.ratio_minus_1), panel.documents,
                                grouped(panel.document_tokens), signed_percent(panel.bound->ratio.upper),
                                signed_percent(panel.bound->limit, 1)));
  }
  return fmt::format("<li>{}</li>", fmt::join(parts, "</li>\n<li>"));
}

// The panels that keep an arm from passing, with what they showed.
std::string obstacles(const ArmJudgement& arm, Objective objective) {
  std::vector<std::string> parts;
  const auto add = [&parts](Verdict verdict, const std::string& panel, const std::string& words) {
    if (verdict != Verdict::kPass)
      parts.push_back(fmt::format("{} {} ({})", panel, stats::verdict_words(verdict), words));
  };
  for (const RetrievalJudgement& panel : arm.retrieval) {
    const std::string lost = part_of(panel.pairs.counts.lost, panel.pairs.counts.n) + " lost";
    add(panel.verdict, fmt::format("retrieval at {} tokens", grouped(panel.length)),
        panel.needed ? fmt::format("{}; needs n = {} at this rate", lost, grouped(*panel.needed)) : lost);
  }
  if (arm.math) {
    const bool keeps = objective == Objective::kPreservation;
    const auto& needed = keeps ? arm.math->preservation_needed : arm.math->aggregate_needed;
    const auto& counts = arm.math->pairs.counts;
    std::string words = fmt::format("{} lost and {} gained of {}", counts.lost, counts.gained, grouped(counts.n));
    if (needed) words += fmt::format("; needs n = {} at these rates", grouped(*needed));
    add(keeps ? arm.math->preservation : arm.math->aggregate, "math answers", words);
  }
  for (const LossJudgement& panel : arm.loss) {
    add(panel.verdict, fmt::format("prediction loss at {} tokens", grouped(panel.document_tokens)),
        panel.bound ? signed_percent(panel.bound->ratio.ratio_minus_1) : "too few documents");
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// With a capital, unless the first word is a name that has one.
std::string sentence_case(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string chosen_sentence(const ReportInputs& in) {
  std::string lists;
  for (const ArmJudgement& arm : in.judgement.arms) {
    if (arm.arm != in.policy.arm) continue;
    lists += fmt::format("<p>{}, {}:</p>\n<ul>{}</ul>\n", judged_label(in.judgement, arm), alpha_words(in.run.protocol),
                         evidence(arm, in.run.protocol.objective));
  }
  if (lists.empty()) return {};
  const RunIdentity& id = in.run.identity;
  return fmt::format("<p><strong>{}</strong> stores {} for {} (weights {}) on worker {}, {} path.</p>\n",
                     arm_name(in.policy.arm), format_words(in.policy.arm, id), isolated(id.model),
                     code(id.model_sha256.substr(0, 12)), isolated(id.worker), run_path_name(in.run.protocol.path)) +
         lists;
}

std::string other_arms(const ReportInputs& in) {
  std::string items;
  for (const ArmJudgement& arm : in.judgement.arms) {
    const std::string why = obstacles(arm, in.run.protocol.objective);
    if (why.empty()) continue;
    items += fmt::format("<li><strong>{}</strong> ({}): {}.</li>\n", judged_label(in.judgement, arm),
                         html_escape(arm_description(arm.arm)), why);
  }
  return items.empty() ? items : "<h2 class=\"minor\">What kept the other formats out</h2>\n<ul>" + items + "</ul>\n";
}

std::string options(const ReportInputs& in) {
  std::string items;
  for (const CapacityOption& option : in.policy.capacity_options) {
    items += fmt::format(
        "<li><strong>{}</strong> ({}): {:.1f}&nbsp;% fewer bytes than native. Certified here; its serving "
        "gate has not run on this worker, so it is offered and not chosen.</li>\n",
        arm_name(option.arm), html_escape(arm_description(option.arm)), option.saved_pct);
  }
  return items.empty() ? items : "<h2 class=\"minor\">Capacity options</h2>\n<ul>" + items + "</ul>\n";
}

std::string limits_of_verdict(const ReportInputs& in) {
  std::string items;
  if (in.run.protocol.protocol_class == ProtocolClass::kScreening) {
    items +=
        "<li>This was a <strong>screening</strong> run: it prints bounds and certifies nothing, however good they are."
        "</li>\n";
  }
  int64_t longest = 0;
  for (const RetrievalPanel& panel : in.run.protocol.retrieval) longest = std::max(longest, panel.length);
  items += fmt::format(
      "<li>It speaks of this model revision, these tasks, this worker and contexts of at most {} tokens; "
      "another revision, build or scale file needs a run of its own.</li>\n",
      grouped(longest));
  items +=
      "<li>It is not a statement about 8-bit formats in general: every line holds for the format, scale policy, number "
      "of cases and bound printed in it.</li>\n"
      "<li>&#8220;Not established&#8221; means that the evidence was not enough. It does not mean that a format is "
      "worse, and two formats with different verdicts have not been compared with each other.</li>\n";
  return "<h2 class=\"minor\">What this verdict is not</h2>\n<ul>" + items + "</ul>\n";
}

std::string facts(const ReportInputs& in) {
  const int64_t native = in.bytes_per_token.at(ArmId::kN);
  const int64_t chosen = in.bytes_per_token.at(in.policy.arm);
  std::string html = "<dl class=\"facts\">";
  const auto add = [&html](std::string_view name, const std::string& value, const std::string& small) {
    html += fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", name, value, small);
  };
  add("Tier chosen", std::string(tier_name(in.policy.tier)),
      in.policy.certified               ? "certified"
      : in.policy.tier == Tier::kNative ? "native control"
                                        : "not certified");
  add("Cache bytes per token", grouped(chosen),
      chosen == native
          ? "as native"
          : fmt::format("{:.1f}&nbsp;% fewer than native ({})",
                        100.0 * (1.0 - static_cast<double>(chosen) / static_cast<double>(native)), grouped(native)));
  add("Fragility probe", std::string(fragility_name(in.probe.verdict)),
      fmt::format("logit noise with 8-bit keys: mean {:.3g}, worst layer {:.3g}", in.probe.mean_logit_noise,
                  in.probe.worst_logit_noise()));
  add("Deciding objective", std::string(objective_name(in.run.protocol.objective)),
      fmt::format("{} protocol, {} cases", protocol_class_name(in.run.protocol.protocol_class),
                  grouped(std::ssize(in.run.cases))));
  return html + "</dl>\n";
}

}  // namespace

std::string verdict(const ReportInputs& in) {
  const bool open = in.policy.tier != Tier::kNative && !in.policy.certified;
  std::string html = fmt::format("<div class=\"verdict {}\"><p class=\"lead\">{}.</p>\n{}</div>\n",
                                 open                  ? "open"
                                 : in.policy.certified ? "pass"
                                                       : "blank",
                                 html_escape(sentence_case(in.policy.reason)), chosen_sentence(in));
  return html + facts(in) + options(in) + other_arms(in) + limits_of_verdict(in);
}

std::vector<const ArmJudgement*> judged_arms(const Judgement& judgement) {
  std::vector<const ArmJudgement*> arms;
  if (judgement.noise_floor) arms.push_back(&*judgement.noise_floor);
  for (const ArmJudgement& arm : judgement.arms) arms.push_back(&arm);
  return arms;
}

std::string arm_label(ArmId arm) {
  return arm == ArmId::kN2 ? "N2 (native)" : std::string(arm_name(arm));
}

std::string judged_label(const Judgement& judgement, const ArmJudgement& judged) {
  const auto other_control = [&](const ArmJudgement& arm) { return arm.control != judgement.arms.front().control; };
  const bool several = std::ranges::any_of(judgement.arms, other_control);
  return arm_label(judged.arm) + (several ? fmt::format(" vs {}", arm_name(judged.control)) : "");
}

std::string format_words(ArmId arm, const RunIdentity& identity) {
  const KvFormat format = arm_format(arm, parse_dtype(identity.native_dtype));
  std::string words = fmt::format("keys {}, values {}", format.key.id(), format.value.id());
  if (format.scale() != ScaleKind::kNone) words += fmt::format(", {} scales", scale_kind_name(format.scale()));
  if (arm_query_dtype(arm)) words += fmt::format(", queries {}", arm_query(arm));
  return words;
}

std::string alpha_words(const Protocol& protocol) {
  return fmt::format("one-sided at alpha {} / {} = {:.4g}", protocol.alpha, protocol.divisor,
                     protocol.alpha_per_bound());
}

}  // namespace report_sections

std::string render_report_html(const ReportInputs& in) {
  using namespace report_sections;  // NOLINT: lists every section once
  const std::string model = report_html::isolated(in.run.identity.model);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>KV cache admission: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
      html_escape(in.run.identity.model), report_html::style_sheet());
  html += fmt::format(
      "<header class=\"top\"><p class=\"eyebrow\">KV cache admission report &#183; {} &#183; protocol {} "
      "&#183; {}</p>\n<h1>{}</h1></header>\n<main>\n",
      model, report_html::isolated(in.run.protocol.name), report_html::isolated(in.run.identity.worker),
      headline(in.policy));
  html += verdict(in);
  html += "<nav aria-label=\"Contents\"><ul>";
  for (const auto& [id, name] :
       {std::pair("tested", "What was tested"), std::pair("arms", "Formats"), std::pair("intervals", "Intervals"),
        std::pair("retrieval", "Retrieval"), std::pair("answers", "Answers"), std::pair("loss", "Prediction loss"),
        std::pair("noise", "Noise floor"), std::pair("probe", "Fragility probe"), std::pair("disclosure", "Disclosure"),
        std::pair("provenance", "Provenance")}) {
    html += fmt::format("<li><a href=\"#{}\">{}</a></li>", id, name);
  }
  html += "</ul></nav>\n";
  html += tested(in) + arms(in) + intervals(in) + retrieval(in) + answers(in) + loss(in) + noise_floor(in) + probe(in) +
          disclosure(in) + provenance(in);
  return html +
         "</main>\n<footer><p>Every number here can be recomputed from the files beside this page: "
         "<code>asymkv gate verify</code> does so.</p></footer>\n</body>\n</html>\n";
}

FinishedRun finish_run(Run run, ProbeResult probe, AdmissionRecord record) {
  FinishedRun finished;
  finished.run = std::move(run);
  finished.judgement = judge_run(finished.run);
  finished.probe = std::move(probe);
  finished.bytes_per_token = arm_bytes(finished.run);
  finished.policy = choose_policy(finished.judgement, finished.probe, finished.run.protocol, finished.bytes_per_token,
                                  finished.run.mode);
  finished.record = std::move(record);
  return finished;
}

Json write_certificate(const FinishedRun& finished, const std::filesystem::path& folder) {
  Json certificate =
      make_certificate({finished.run, finished.judgement, finished.probe, finished.bytes_per_token, folder});
  write_file_atomic(folder / run_files::kCertificate, certificate_bytes(certificate));
  return certificate;
}

Json write_policy_and_report(const FinishedRun& finished, const std::filesystem::path& folder) {
  Json policy =
      policy_to_json(finished.policy, finished.run, finished.record, sha256_file_hex(folder / run_files::kCertificate));
  write_file_atomic(folder / run_files::kPolicy, canonical_json(policy) + "\n");
  write_file_atomic(folder / run_files::kReport, render_report_html(finished.report_inputs()));
  return policy;
}

}  // namespace asymkv
