#pragma once

#include <span>
#include <string>
#include <string_view>

#include "asymkv/record/record.h"
#include "asymkv/record/record_scan.h"

namespace asymkv {

// A text of a file as part of one line on a terminal: control characters as \xNN, so that no file writes lines of its
// own or commands the terminal.
std::string shown(std::string_view text);

// "attested", or "not attested: " and why: what is unknown, or the kernel that worked on another format.
std::string attestation(const SideFacts& side);

// The record for people: the four facts of keys and values in two columns, the kernels that ran, and the rest.
std::string render_record(const FoundRecord& found);

// A line for each record: its place, both effective formats and whether they are attested.
std::string render_record_list(std::span<const FoundRecord> records);

}  // namespace asymkv
