#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/stats/verdict.h"

// Building blocks of the report. Arguments named `html` are markup; everything else is plain text and gets escaped.
namespace asymkv::report_html {

// A data table with a caption. The first cell of a row is its header.
class Table {
 public:
  // `wraps`: long cells break into lines instead of making the table wider.
  Table(std::string_view caption, const std::vector<std::string>& headers, bool wraps = false);
  void add_row(const std::vector<std::string>& cells_html);
  std::string html() const;

 private:
  std::string html_;
};

// "Heading" with an id for the contents list, and its content.
std::string section(std::string_view id, std::string_view heading, std::string_view content_html);
std::string details(std::string_view summary, std::string_view content_html);
std::string paragraph(std::string_view text);
// Coloured word with a sign, so that colour is never the only carrier.
std::string badge(stats::Verdict verdict);
// CSS class of a verdict: "pass", "degraded", "open", "blank".
std::string_view verdict_class(stats::Verdict verdict);
// Text from outside in a box of its own direction: a right-to-left mark cannot reorder the sentence around it.
std::string isolated(std::string_view text);
std::string code(std::string_view text);

std::string grouped(int64_t value);                           // "30,720"
std::string percent(double fraction, int digits = 2);         // "1.28 %"
std::string signed_percent(double fraction, int digits = 2);  // "+1.28 %"
std::string points(double fraction);                          // "-0.71 pp"
std::string part_of(int64_t part, int64_t whole);             // "3 / 132"

std::string_view style_sheet();

}  // namespace asymkv::report_html
