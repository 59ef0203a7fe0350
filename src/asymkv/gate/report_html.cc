#include "asymkv/gate/report_html.h"

#include <fmt/format.h>

#include "asymkv/gate/report.h"

namespace asymkv {
namespace {

// Control characters have no place in HTML.
void append_allowed(char c, std::string& out) {
  const bool forbidden = (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  if (forbidden) {
    out.append("\xEF\xBF\xBD");
  } else {
    out.push_back(c);
  }
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        append_allowed(c, out);
    }
  }
  return out;
}

namespace report_html {
namespace {

constexpr std::string_view kStyleSheet = R"css(
:root{color-scheme:light dark;--bg:#fff;--panel:#f5f7f9;--text:#1b2127;--muted:#55606b;--line:#d5dbe1;--accent:#0b5cad;
--pass:#17703a;--pass-bg:#e3f4e8;--degraded:#b3261e;--degraded-bg:#fde7e5;--open:#7d5200;--open-bg:#fdf0d3;--blank:#55606b;
--blank-bg:#e9edf1;--heat:179 38 30}
@media (prefers-color-scheme:dark){:root{--bg:#11161b;--panel:#1a2129;--text:#e7ebef;--muted:#a3aebb;--line:#343e49;
--accent:#78b7ff;--pass:#5fd08a;--pass-bg:#14311f;--degraded:#ff8d84;--degraded-bg:#3d1916;--open:#f0bf55;--open-bg:#382a0b;
--blank:#a3aebb;--blank-bg:#2a333d;--heat:255 92 80}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",
"DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
main,header.top,footer{max-width:70rem;margin:0 auto;padding:0 1.25rem}
header.top{padding-top:2rem}
.eyebrow{margin:0;color:var(--muted);font-size:.875rem;letter-spacing:.02em;overflow-wrap:anywhere}
h1{font-size:clamp(1.6rem,4.5vw,2.3rem);line-height:1.2;margin:.35rem 0 .75rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.35rem;line-height:1.3;margin:3rem 0 .75rem;padding-top:1rem;border-top:1px solid var(--line)}
h3,h2.minor{font-size:1.05rem;margin:1.75rem 0 .5rem}h2.minor{padding:0;border:0}
p,li{max-width:46rem;overflow-wrap:anywhere}
a{color:var(--accent)}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.86em;overflow-wrap:anywhere}
.verdict{border:1px solid var(--line);border-left:.5rem solid var(--blank);border-radius:.6rem;background:var(--panel);
padding:1rem 1.25rem 1.1rem}
.verdict.pass{border-left-color:var(--pass)}.verdict.open{border-left-color:var(--open)}.verdict.blank{border-left-color:var(--blank)}
.verdict p{margin:.4rem 0}.verdict ul{margin:.4rem 0 0;padding-left:1.3rem}.verdict .lead{font-size:1.1rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1rem 0 0;padding:0}
.facts div{border:1px solid var(--line);border-radius:.6rem;padding:.7rem .9rem}
.facts dt{color:var(--muted);font-size:.82rem}.facts dd{margin:.1rem 0 0;font-size:1.3rem;font-weight:650;line-height:1.3}
.facts dd small{display:block;font-size:.85rem;font-weight:400;color:var(--muted)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;list-style:none;margin:1.25rem 0 0;padding:0;font-size:.93rem}
.badge{display:inline-block;white-space:nowrap;border-radius:1rem;padding:.05rem .6rem;font-size:.85rem;font-weight:600}
.pass.badge{color:var(--pass);background:var(--pass-bg)}.degraded.badge{color:var(--degraded);background:var(--degraded-bg)}
.open.badge{color:var(--open);background:var(--open-bg)}.blank.badge{color:var(--blank);background:var(--blank-bg)}
.scroll{overflow-x:auto;margin:.75rem 0 1.25rem;-webkit-overflow-scrolling:touch;background:
linear-gradient(to right,var(--bg) 40%,transparent) 0 0/2.5rem 100% no-repeat local,
linear-gradient(to left,var(--bg) 40%,transparent) 100% 0/2.5rem 100% no-repeat local,
linear-gradient(to right,var(--line),transparent) 0 0/.9rem 100% no-repeat scroll,
linear-gradient(to left,var(--line),transparent) 100% 0/.9rem 100% no-repeat scroll}
.scroll:focus-visible,summary:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;min-width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);font-size:.9rem;padding:0 0 .4rem;position:sticky;left:0}
th,td{padding:.38rem .75rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:baseline;white-space:nowrap}
thead th{font-size:.82rem;font-weight:600;color:var(--muted);border-bottom:2px solid var(--line);vertical-align:bottom;white-space:normal}
tbody th{position:sticky;left:0;background:var(--bg);font-weight:650;z-index:1}
td.heat{text-align:center;background:rgb(var(--heat) / calc(var(--s,0)*.5))}td.zero{text-align:center;color:var(--muted)}
td small,th small{color:var(--muted);font-weight:400}
table.wrap{min-width:max(100%,44rem)}table.wrap td{white-space:normal}
dl.kv{display:grid;grid-template-columns:minmax(9rem,max-content) 1fr;gap:.3rem 1.25rem;margin:.75rem 0}
dl.kv dt{color:var(--muted)}dl.kv dd{margin:0;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,29rem),1fr));gap:1.25rem}
figure{margin:0;border:1px solid var(--line);border-radius:.6rem;padding:.85rem .9rem .6rem;min-width:0}
figcaption{font-size:.9rem;margin-bottom:.5rem}figcaption strong{display:block;font-size:1rem}figcaption span{color:var(--muted)}
figure .scroll{margin:0}
svg{display:block;width:100%;min-width:30rem;height:auto;font:12px system-ui,"Noto Sans","DejaVu Sans",sans-serif}
svg text{fill:var(--text)}svg .soft{fill:var(--muted)}svg .grid{stroke:var(--line)}svg .axis{stroke:var(--muted)}
svg .limit{stroke:var(--accent);stroke-width:2;stroke-dasharray:5 3}svg .limit-text{fill:var(--accent);font-weight:600;paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}
svg .pass{stroke:var(--pass);fill:var(--pass)}svg .degraded{stroke:var(--degraded);fill:var(--degraded)}
svg .open{stroke:var(--open);fill:var(--open)}svg .blank{stroke:var(--blank);fill:var(--blank)}
svg .range{stroke-width:3;stroke-linecap:round}svg .doc{fill:var(--accent);stroke:none;opacity:.6}svg .mean{stroke:var(--text);stroke-width:2.5}
svg .bar{stroke:none}svg .key{fill:var(--accent)}svg .value{fill:var(--muted)}svg .hollow{fill:var(--bg);stroke-width:2}
details{border:1px solid var(--line);border-radius:.6rem;padding:.6rem .9rem;margin:.75rem 0}
summary{cursor:pointer;font-weight:600}
pre{background:var(--panel);border-radius:.4rem;padding:.75rem;white-space:pre-wrap;margin:.6rem 0 0}
.note{color:var(--muted);font-size:.92rem}
footer{padding-top:2rem;padding-bottom:3rem;color:var(--muted);font-size:.9rem}
@media (max-width:34rem){dl.kv{grid-template-columns:1fr;gap:0}dl.kv dd{margin-bottom:.5rem}h2{margin-top:2.25rem}
main,header.top,footer{padding-left:1rem;padding-right:1rem}}
@media print{:root{--bg:#fff;--panel:#fff;--text:#000;--muted:#444;--line:#bbb;--accent:#0b5cad;--pass:#17703a;--pass-bg:#fff;
--degraded:#b3261e;--degraded-bg:#fff;--open:#7d5200;--open-bg:#fff;--blank:#444;--blank-bg:#fff;--heat:179 38 30}
html,body{font-size:9pt}nav{display:none}p,li{max-width:none}tbody th,caption{position:static}
main,header.top,footer{max-width:none;padding:0 1px}.scroll{overflow:visible;background:none}table,table.wrap{font-size:7.5pt;min-width:100%}
th,td{padding:.15rem .3rem}svg{min-width:0}figure,tr,.verdict,.facts div{break-inside:avoid}h2,h3{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
)css";

}  // namespace

Table::Table(std::string_view caption, const std::vector<std::string>& headers, bool wraps) {
  html_ = fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
      "aria-label=\"{0}\"><table{1}><caption>{0}</caption><thead><tr>",
      html_escape(caption), wraps ? " class=\"wrap\"" : "");
  for (const std::string& header : headers) html_ += fmt::format("<th scope=\"col\">{}</th>", html_escape(header));
  html_ += "</tr></thead><tbody>\n";
}

void Table::add_row(const std::vector<std::string>& cells_html) {
  html_ += "<tr>";
  for (size_t i = 0; i < cells_html.size(); ++i) {
    html_ +=
        i == 0 ? fmt::format("<th scope=\"row\">{}</th>", cells_html[i]) : fmt::format("<td>{}</td>", cells_html[i]);
  }
  html_ += "</tr>\n";
}

std::string Table::html() const {
  return html_ + "</tbody></table></div>\n";
}

std::string section(std::string_view id, std::string_view heading, std::string_view content_html) {
  return fmt::format("<section id=\"{0}\" aria-labelledby=\"{0}-h\"><h2 id=\"{0}-h\">{1}</h2>\n{2}</section>\n", id,
                     html_escape(heading), content_html);
}

std::string details(std::string_view summary, std::string_view content_html) {
  return fmt::format("<details><summary>{}</summary>{}</details>\n", html_escape(summary), content_html);
}

std::string paragraph(std::string_view text) {
  return fmt::format("<p>{}</p>\n", html_escape(text));
}

std::string_view verdict_class(stats::Verdict verdict) {
  switch (verdict) {
    case stats::Verdict::kPass:
      return "pass";
    case stats::Verdict::kDegraded:
      return "degraded";
    case stats::Verdict::kNotEstablished:
      return "open";
    case stats::Verdict::kUninformative:
      return "blank";
  }
  return "blank";
}

std::string badge(stats::Verdict verdict) {
  std::string_view sign = "&#8211;";
  if (verdict == stats::Verdict::kPass) sign = "&#10003;";
  if (verdict == stats::Verdict::kDegraded) sign = "&#10005;";
  if (verdict == stats::Verdict::kNotEstablished) sign = "?";
  return fmt::format("<span class=\"badge {}\"><span aria-hidden=\"true\">{}</span> {}</span>", verdict_class(verdict),
                     sign, stats::verdict_words(verdict));
}

std::string isolated(std::string_view text) {
  return fmt::format("<bdi>{}</bdi>", html_escape(text));
}

std::string code(std::string_view text) {
  return fmt::format("<code>{}</code>", html_escape(text));
}

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  std::string text = digits.substr(0, sign);
  for (size_t i = sign; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string percent(double fraction, int digits) {
  return fmt::format("{:.{}f}&nbsp;%", 100.0 * fraction, digits);
}

std::string signed_percent(double fraction, int digits) {
  return fmt::format("{:+.{}f}&nbsp;%", 100.0 * fraction, digits);
}

std::string points(double fraction) {
  return fmt::format("{:+.2f}&nbsp;pp", 100.0 * fraction);
}

std::string part_of(int64_t part, int64_t whole) {
  return fmt::format("{}&nbsp;/&nbsp;{}", grouped(part), grouped(whole));
}

std::string_view style_sheet() {
  return kStyleSheet;
}

}  // namespace report_html
}  // namespace asymkv
