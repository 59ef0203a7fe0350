#include "asymkv/gate/jsonl_reader.h"

#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"

namespace asymkv {

void read_jsonl(const std::filesystem::path& path,
                const std::function<void(const Json& value, const std::string& origin)>& row) {
  const std::string text = read_text_file(path);
  size_t begin = 0;
  for (int64_t line = 1; begin < text.size(); ++line) {
    const std::string origin = fmt::format("{}:{}", path.string(), line);
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      throw_bad_input("{}: the last line has no newline, so its writer died inside it: resume the run", origin);
    }
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    if (content.empty()) throw_bad_input("{}: the line is empty: remove it", origin);
    row(parse_json(content, origin), origin);
    begin = end + 1;
  }
}

}  // namespace asymkv
