// aiconfigurator: rows of its CSV tables (best_config_topn.csv, pareto.csv). It estimates; nothing ran.

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

// Cells of a CSV line (RFC 4180, no line breaks in cells).
std::vector<std::string> split_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

class Table {
 public:
  explicit Table(const ImportDocument& document)
      : document_(document), header_(split_cells(document.lines.empty() ? "" : document.lines[0])) {}
  bool has(const std::string& column) const { return std::ranges::find(header_, column) != header_.end(); }

  // Throws Error{kBadInput} unless the row has a cell for every column.
  std::vector<std::string> row(size_t line) const {
    std::vector<std::string> cells = split_cells(document_.lines[line]);
    if (cells.size() == header_.size()) return cells;
    throw_bad_input("{}: line {} has {} cells, and the header {}", document_.origin, line + 1, cells.size(),
                    header_.size());
  }
  std::string cell(const std::vector<std::string>& row, const std::string& column) const {
    const auto found = std::ranges::find(header_, column);
    return found == header_.end() ? std::string() : row[static_cast<size_t>(found - header_.begin())];
  }

 private:
  const ImportDocument& document_;
  std::vector<std::string> header_;
};

// Of an aggregated configuration the prefix is empty; of a disaggregated one it is "(p)" or "(d)".
ImportedRecord read_worker(const ImportDocument& document, const Table& table, size_t line, const std::string& prefix) {
  const std::vector<std::string> row = table.row(line);
  const auto cell = [&](const std::string& column) {
    const std::string own = table.cell(row, prefix + column);
    return own.empty() ? table.cell(row, column) : own;
  };
  ImportedRecord imported = start_import(document, document.places.size(), "unknown", "aiconfigurator");
  imported.at = fmt::format("line {}{}{}", line + 1, prefix.empty() ? "" : " ", prefix);
  if (!cell("backend").empty()) imported.record.engine = cell("backend");
  imported.record.engine_version = cell("version");
  imported.record.model.id = cell("model");
  imported.record.device.name = cell("system");
  const std::string dtype = table.cell(row, prefix + "kvcache");
  request_both(imported, dtype, fmt::format("column {}kvcache", prefix));
  imported.notes.emplace_back("an estimate of a planner: nothing ran");
  return imported;
}

std::vector<ImportedRecord> read_table(const ImportDocument& document) {
  const Table table(document);
  const std::vector<std::string> prefixes =
      table.has("kvcache") ? std::vector<std::string>{""} : std::vector<std::string>{"(p)", "(d)"};
  std::vector<ImportedRecord> records;
  for (size_t line = 1; line < document.lines.size(); ++line) {
    if (document.lines[line].empty()) continue;
    for (const std::string& prefix : prefixes) records.push_back(read_worker(document, table, line, prefix));
  }
  if (records.empty()) throw_bad_input("{}: has a header and no row", document.origin);
  return records;
}

bool is_table(const ImportDocument& document) {
  const Table table(document);
  return table.has("kvcache") || (table.has("(p)kvcache") && table.has("(d)kvcache"));
}

}  // namespace

std::vector<ImportSource> planner_sources() {
  return {{"aiconfigurator", "a CSV column kvcache, or (p)kvcache and (d)kvcache", is_table, read_table}};
}

}  // namespace asymkv
