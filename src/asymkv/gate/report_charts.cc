#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "asymkv/gate/report_html.h"
#include "asymkv/gate/report_sections.h"

// SVG charts of the report. Colours come from the style sheet, so that they follow light, dark and print.
namespace asymkv::report_sections {
namespace {

using namespace report_html;  // NOLINT: the vocabulary of this file

constexpr double kWidth = 560;
constexpr double kLeft = 92;  // room for arm names
constexpr double kRight = 16;
constexpr double kTop = 26;  // room for the limit's label
constexpr double kRowHeight = 22;

// Values on a horizontal axis. Where the range dwarfs the limit the axis is a signed square root, so that both stay
// readable.
class Axis {
 public:
  Axis(double low, double high, double limit)
      : root_(std::max(std::fabs(low), std::fabs(high)) > 6 * std::fabs(limit)) {
    low_ = map(std::min(low, 0.0));
    high_ = map(std::max(high, 0.0));
    if (high_ - low_ <= 0) high_ = low_ + 1;
    const double pad = 0.04 * (high_ - low_);
    if (low < 0) low_ -= pad;
    high_ += pad;
  }
  bool root() const { return root_; }
  double x(double value) const { return kLeft + (map(value) - low_) / (high_ - low_) * (kWidth - kLeft - kRight); }
  // Round values far enough apart for their labels.
  std::vector<double> ticks() const {
    std::vector<double> accepted = {0.0};
    for (int exponent = 2; exponent >= -7; --exponent) {
      for (const double digit : {5.0, 2.0, 1.0}) {
        for (const double sign : {1.0, -1.0}) add_tick(sign * digit * std::pow(10.0, exponent), accepted);
      }
    }
    return accepted;
  }

 private:
  double map(double value) const { return root_ ? std::copysign(std::sqrt(std::fabs(value)), value) : value; }
  void add_tick(double value, std::vector<double>& accepted) const {
    const double at = x(value);
    if (at < kLeft || at > kWidth - kRight) return;
    const auto crowds = [&](double other) { return std::fabs(x(other) - at) < 44; };
    if (std::ranges::none_of(accepted, crowds)) accepted.push_back(value);
  }

  bool root_;
  double low_ = 0;
  double high_ = 1;
};

struct Label {
  std::string title;
  std::string note;
  std::string description;  // for people who cannot see the chart
};

std::string figure(std::string_view id, const Label& label, double height, const std::string& body) {
  return fmt::format(
      "<figure><figcaption><strong>{1}</strong><span>{2}</span></figcaption><div class=\"scroll\" tabindex=\"0\" "
      "role=\"region\" aria-label=\"{1}\"><svg viewBox=\"0 0 {3} {4}\" role=\"img\" aria-labelledby=\"{0}-t {0}-d\">"
      "<title id=\"{0}-t\">{1}</title><desc id=\"{0}-d\">{5}</desc>\n{6}</svg></div></figure>\n",
      id, html_escape(label.title), label.note, kWidth, height, html_escape(label.description), body);
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2, y2,
                     style);
}

std::string text(double x, double y, std::string_view anchor, std::string_view style, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, style,
                     html_escape(words));
}

using TickText = std::function<std::string(double)>;

// Grid, tick labels and the limit of a chart with `rows` rows.
std::string frame(const Axis& axis, size_t rows, double limit, const TickText& tick_text) {
  const double bottom = kTop + kRowHeight * static_cast<double>(rows);
  std::string svg;
  for (const double tick : axis.ticks()) {
    svg += line(axis.x(tick), kTop, axis.x(tick), bottom, tick == 0 ? "axis" : "grid");
    svg += text(axis.x(tick), bottom + 16, "middle", "soft", tick_text(tick));
  }
  svg += line(axis.x(limit), kTop - 6, axis.x(limit), bottom, "limit");
  const bool left = axis.x(limit) > kWidth * 0.8;
  svg += text(axis.x(limit) + (left ? -4 : 4), kTop - 10, left ? "end" : "start", "limit-text",
              (limit < 0 ? "margin " : "limit ") + tick_text(limit));
  return svg;
}

struct Interval {
  std::string label;
  bool decides = true;  // not the noise floor
  double lower = 0;
  double estimate = 0;
  double upper = 0;
  stats::Verdict verdict = stats::Verdict::kNotEstablished;
};

std::string marker(const Interval& row, double x, double y) {
  const std::string_view style = row.decides ? verdict_class(row.verdict) : "blank";
  switch (row.verdict) {
    case stats::Verdict::kPass:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"{}\"/>\n", x, y, style);
    case stats::Verdict::kDegraded:
      return fmt::format("<path d=\"M{0:.1f} {1:.1f}l10 10m0 -10l-10 10\" class=\"{2} range\"/>\n", x - 5, y - 5,
                         style);
    default:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"{} hollow\"/>\n", x, y, style);
  }
}

std::string interval_chart(std::string_view id, Label label, const std::vector<Interval>& rows, double limit,
                           const TickText& tick_text) {
  if (rows.empty()) return {};
  double low = std::min(0.0, limit), high = std::max(0.0, limit);
  for (const Interval& row : rows) {
    low = std::min(low, row.lower);
    high = std::max(high, row.upper);
  }
  const Axis axis(low, high, limit);
  std::string svg = frame(axis, rows.size(), limit, tick_text);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Interval& row = rows[i];
    const double y = kTop + kRowHeight * (static_cast<double>(i) + 0.5);
    const std::string_view style = row.decides ? verdict_class(row.verdict) : "blank";
    svg += text(kLeft - 10, y + 4, "end", "", row.label);
    svg += line(axis.x(row.lower), y, axis.x(row.upper), y, fmt::format("{} range", style));
    svg += marker(row, axis.x(row.estimate), y);
    label.description += fmt::format(" {}: {} between {} and {}, {}.", row.label, tick_text(row.estimate),
                                     tick_text(row.lower), tick_text(row.upper), stats::verdict_words(row.verdict));
  }
  if (axis.root()) label.note += " Square-root axis.";
  return figure(id, label, kTop + kRowHeight * static_cast<double>(rows.size()) + 24, svg);
}

std::string percent_tick(double value) {
  return fmt::format("{:.3g} %", 100.0 * value);
}
std::string points_tick(double value) {
  return fmt::format("{:.3g} pp", 100.0 * value);
}
std::string plain_tick(double value) {
  return fmt::format("{:.3g}", value);
}

std::string answer_charts(const ReportInputs& in) {
  std::vector<Interval> gross, net;
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    if (!arm->math || !arm->math->preservation_bound) continue;
    const auto& p = *arm->math->preservation_bound;
    const auto& a = *arm->math->aggregate_bound;
    gross.push_back({judged_label(in.judgement, *arm), arm->arm != ArmId::kN2, p.lower, p.gross_loss, p.upper,
                     arm->math->preservation});
    net.push_back({judged_label(in.judgement, *arm), arm->arm != ArmId::kN2, a.lower, a.net_change, a.upper,
                   arm->math->aggregate});
  }
  const Margins& margins = in.run.protocol.margins;
  return interval_chart(
             "chart-preservation",
             {"Answer preservation: share of math answers lost", "Passes when the right end stays left of the limit.",
              "Lost math answers with one-sided bounds."},
             gross, margins.preservation_limit, percent_tick) +
         interval_chart("chart-aggregate",
                        {"Aggregate accuracy: net change of math answers",
                         "Passes when the left end stays right of the margin.", "Net change with one-sided bounds."},
                        net, margins.aggregate_margin, points_tick);
}

std::string retrieval_chart(const ReportInputs& in, size_t panel_idx) {
  const RetrievalPanel& panel = in.run.protocol.retrieval[panel_idx];
  std::vector<Interval> rows;
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    const RetrievalJudgement& judged = arm->retrieval[panel_idx];
    if (!judged.bound) continue;
    rows.push_back({judged_label(in.judgement, *arm), arm->arm != ArmId::kN2, judged.bound->lower,
                    judged.bound->gross_loss, judged.bound->upper, judged.verdict});
  }
  return interval_chart(fmt::format("chart-{}", panel.name()),
                        {fmt::format("Retrieval at {} tokens: share of needles lost", grouped(panel.length)),
                         "Passes when the right end stays left of the limit.", "Lost needles with one-sided bounds."},
                        rows, panel.limit, percent_tick);
}

std::string loss_chart(const ReportInputs& in, size_t panel_idx) {
  const LossPanel& panel = in.run.protocol.loss[panel_idx];
  std::vector<Interval> rows;
  for (const ArmJudgement* arm : judged_arms(in.judgement)) {
    const LossJudgement& judged = arm->loss[panel_idx];
    if (!judged.bound) continue;
    const stats::LossRatio& ratio = judged.bound->ratio;
    rows.push_back({judged_label(in.judgement, *arm), arm->arm != ArmId::kN2, ratio.lower, ratio.ratio_minus_1,
                    ratio.upper, judged.verdict});
  }
  return interval_chart(
      fmt::format("chart-{}", panel.name()),
      {fmt::format("Prediction loss at {} tokens: change of the mean", grouped(panel.document_tokens)),
       "Passes when the right end stays left of the limit.", "Loss change with one-sided bounds."},
      rows, in.run.protocol.margins.loss_limit, percent_tick);
}

// One row an arm, one dot a document.
std::string document_chart(const ReportInputs& in, size_t panel_idx) {
  const LossPanel& panel = in.run.protocol.loss[panel_idx];
  const auto arms = judged_arms(in.judgement);
  double low = 0, high = 0, native_mean = 0, native_count = 0;
  for (const ArmJudgement* arm : arms) {
    for (const double delta : arm->loss[panel_idx].document_deltas) {
      low = std::min(low, delta);
      high = std::max(high, delta);
    }
  }
  for (const Outcome& native : in.run.outcomes[0]) {
    if (native.panel != panel.name() || native.failed) continue;
    native_mean += native.nll;
    native_count += 1;
  }
  if (native_count == 0) return {};
  const double limit = in.run.protocol.margins.loss_limit * native_mean / native_count;
  const Axis axis(low, std::max(high, limit), limit);
  Label label{fmt::format("Loss change of each document, {} tokens", grouped(panel.document_tokens)),
              "Nats per token against native; one dot a document, a bar at the mean.", "Mean loss change by arm."};
  if (axis.root()) label.note += " Square-root axis.";
  std::string svg = frame(axis, arms.size(), limit, plain_tick);
  for (size_t row = 0; row < arms.size(); ++row) {
    const std::vector<double>& deltas = arms[row]->loss[panel_idx].document_deltas;
    const double y = kTop + kRowHeight * (static_cast<double>(row) + 0.5);
    svg += text(kLeft - 10, y + 4, "end", "", judged_label(in.judgement, *arms[row]));
    double sum = 0;
    for (size_t i = 0; i < deltas.size(); ++i) {
      sum += deltas[i];
      // Neighbours are moved apart, always in the same way.
      const double shift = static_cast<double>(i % 3) * 4.0 - 4.0;
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"doc\"/>\n", axis.x(deltas[i]), y + shift);
    }
    if (deltas.empty()) continue;
    const double mean = sum / static_cast<double>(deltas.size());
    svg += line(axis.x(mean), y - 9, axis.x(mean), y + 9, "mean");
    label.description += fmt::format(" {}: {:+.3g} nats over {} documents.", judged_label(in.judgement, *arms[row]),
                                     mean, deltas.size());
  }
  return figure(fmt::format("chart-documents-{}", panel.document_tokens), label,
                kTop + kRowHeight * static_cast<double>(arms.size()) + 24, svg);
}

// Vertical bars over layers.
struct LayerBars {
  std::vector<double> values;
  std::string_view style;
};

constexpr double kPlotHeight = 190;

class LayerPlot {
 public:
  LayerPlot(size_t num_layers, double top_value)
      : step_((kWidth - 46 - kRight) / static_cast<double>(num_layers)), top_(top_value > 0 ? 1.08 * top_value : 1.0) {}
  double x(size_t layer) const { return 46 + step_ * static_cast<double>(layer); }
  double y(double value) const { return kTop + kPlotHeight * (1.0 - value / top_); }
  double step() const { return step_; }

  std::string bar(size_t layer, double value, double part, double parts, std::string_view style) const {
    const double width = std::clamp(step_ * 0.76 / parts, 1.0, 36.0);
    const double left = x(layer) + step_ / 2 + width * (part - parts / 2);
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"bar {}\"/>\n", left,
                       y(value), width, std::max(0.5, y(0) - y(value)), style);
  }
  std::string axes(const std::vector<LayerProbe>& layers) const {
    std::string svg;
    const double magnitude = std::pow(10.0, std::floor(std::log10(top_)));
    double step = magnitude / 2;
    if (top_ / step < 3) step = magnitude / 5;
    if (top_ / step > 6) step = magnitude * (top_ / magnitude > 6 ? 2 : 1);
    for (double value = 0; value <= top_; value += step) {
      svg += line(46, y(value), kWidth - kRight, y(value), value == 0 ? "axis" : "grid");
      svg += text(40, y(value) + 4, "end", "soft", fmt::format("{:.3g}", value));
    }
    const size_t every = layers.size() / 14 + 1;
    for (size_t i = 0; i < layers.size(); i += every) {
      svg += text(x(i) + step_ / 2, y(0) + 16, "middle", "soft", std::to_string(layers[i].layer_idx));
    }
    return svg;
  }
  std::string threshold(double value, std::string_view words, bool label_left) const {
    return line(46, y(value), kWidth - kRight, y(value), "limit") +
           text(label_left ? 50 : kWidth - kRight, y(value) - 5, label_left ? "start" : "end", "limit-text", words);
  }

 private:
  double step_;
  double top_;
};

std::string noise_chart(const ProbeResult& probe) {
  const double limit = probe.thresholds.layer_limit();
  double top = limit;
  for (const LayerProbe& layer : probe.layers) top = std::max(top, layer.logit_noise);
  const LayerPlot plot(probe.layers.size(), top);
  Label label{"Logit noise by layer, 8-bit E4M3 keys",
              "Root mean square change of attention logits within a row, mean of heads. Layer number below.",
              "Noise by layer."};
  std::string svg = plot.axes(probe.layers);
  for (size_t i = 0; i < probe.layers.size(); ++i) {
    const double noise = probe.layers[i].logit_noise;
    const std::string_view style = noise >= limit                          ? "degraded"
                                   : noise > probe.thresholds.robust_noise ? "open"
                                                                           : "pass";
    svg += plot.bar(i, noise, 0, 1, style);
    label.description += fmt::format(" Layer {}: {:.3g}.", probe.layers[i].layer_idx, noise);
  }
  svg += plot.threshold(probe.thresholds.robust_noise, fmt::format("robust to {:.3g}", probe.thresholds.robust_noise),
                        true);
  svg += plot.threshold(limit, fmt::format("fragile from {:.3g}", limit), false);
  return figure("chart-noise", label, kTop + kPlotHeight + 24, svg);
}

std::string range_chart(const ProbeResult& probe) {
  double top = 0;
  for (const LayerProbe& layer : probe.layers) top = std::max({top, layer.k_max, layer.v_max});
  const LayerPlot plot(probe.layers.size(), top);
  Label label{
      "Largest key and value by layer",
      "Blue: largest |key|. Grey: largest |value|. Large keys with little variation cost 8-bit logits their detail.",
      "Ranges by layer."};
  std::string svg = plot.axes(probe.layers);
  for (size_t i = 0; i < probe.layers.size(); ++i) {
    const LayerProbe& layer = probe.layers[i];
    svg += plot.bar(i, layer.k_max, 0, 2, "key") + plot.bar(i, layer.v_max, 1, 2, "value");
    label.description +=
        fmt::format(" Layer {}: keys {:.3g}, values {:.3g}.", layer.layer_idx, layer.k_max, layer.v_max);
  }
  return figure("chart-range", label, kTop + kPlotHeight + 24, svg);
}

std::string probe_table(const ProbeResult& probe) {
  Table table("Every layer", {"layer", "logit noise", "worst head", "largest logit change", "row KL, nats",
                              "key bias norm", "largest |key|", "largest |value|", "keys flushed", "key SNR, dB",
                              "value SNR, dB", "output error, 8-bit keys", "output error, 8-bit values"});
  for (const LayerProbe& l : probe.layers) {
    std::vector<std::string> row = {std::to_string(l.layer_idx)};
    for (const double value :
         {l.logit_noise, l.logit_noise_max, l.logit_change_max, l.row_kl, l.k_bias_norm, l.k_max, l.v_max}) {
      row.push_back(fmt::format("{:.3g}", value));
    }
    row.push_back(percent(l.k_flushed));
    for (const double value : {l.k_snr_db, l.v_snr_db}) row.push_back(fmt::format("{:.1f}", value));
    for (const double value : {l.k8_output_error, l.v8_output_error}) row.push_back(percent(value));
    table.add_row(row);
  }
  return details(fmt::format("Numbers of all {} layers", probe.layers.size()), table.html());
}

std::string probe_words(const ProbeResult& probe) {
  std::string words = fmt::format(
      "Verdict: {}. The mean logit noise over layers is {:.3g}; up to {:.3g} the keys count as robust, from {:.3g} on "
      "as fragile.",
      fragility_name(probe.verdict), probe.mean_logit_noise, probe.thresholds.robust_noise,
      probe.thresholds.fragile_noise);
  if (probe.thresholds.fragile_layer_noise) {
    words += fmt::format(" The worst layer has {:.3g}; from {:.3g} on one layer makes the keys fragile.",
                         probe.worst_logit_noise(), *probe.thresholds.fragile_layer_noise);
  }
  if (!probe.deciding_layers.empty()) {
    std::string list;
    const size_t shown = std::min<size_t>(probe.deciding_layers.size(), 8);
    for (size_t i = 0; i < shown; ++i) list += fmt::format("{}{}", i ? ", " : "", probe.deciding_layers[i]);
    words += fmt::format(" Above the robust threshold, worst first: layers {}{}.", list,
                         shown < probe.deciding_layers.size() ? " and others" : "");
  }
  return words + " The probe is cheap and admits nothing by itself: only the panels do.";
}

}  // namespace

std::string intervals(const ReportInputs& in) {
  std::string charts = answer_charts(in);
  for (size_t i = 0; i < in.run.protocol.retrieval.size(); ++i) charts += retrieval_chart(in, i);
  for (size_t i = 0; i < in.run.protocol.loss.size(); ++i) charts += loss_chart(in, i);
  return section(
      "intervals", "Intervals against their limits",
      "<p>Each line runs from the lower to the upper one-sided bound, with the estimate on it: a filled dot for "
      "pass, a ring for not established or uninformative, a cross for degraded.</p>\n<div class=\"charts\">" +
          charts + "</div>\n");
}

std::string documents(const ReportInputs& in) {
  std::string charts;
  for (size_t i = 0; i < in.run.protocol.loss.size(); ++i) charts += document_chart(in, i);
  return "<div class=\"charts\">" + charts + "</div>\n";
}

std::string probe(const ReportInputs& in) {
  return section("probe", "Fragility probe",
                 paragraph(probe_words(in.probe)) + "<div class=\"charts\">" + noise_chart(in.probe) +
                     range_chart(in.probe) + "</div>\n" + probe_table(in.probe));
}

}  // namespace asymkv::report_sections
