#pragma once

#include <string_view>

#include "asymkv/base/json.h"
#include "asymkv/record/record.h"

namespace asymkv {

// Whether a row of `bench kernel` carries the short record of that benchmark ("asymkv-kernel-record-1").
bool is_kernel_row(const Json& row);

// That short record in full: facts from the record, page bytes from the row's geometry and the layout's own code. The
// count of a kernel is its launches in one replay. The benchmark draws its own contents, so there is no model and no
// file of scales or key biases. payload_bytes is that of the one layer that its pool holds, 0 in rows that do not say
// how many pages it has. Throws Error{kBadInput} naming `origin` and the field.
Record record_from_kernel_row(const Json& row, std::string_view origin);

}  // namespace asymkv
