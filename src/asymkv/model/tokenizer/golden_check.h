#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/model/tokenizer/tokenizer.h"

// Compares a tokenizer with a golden file of tests/golden/tokenizer, which the reference implementation made.
namespace asymkv {

std::filesystem::path golden_folder();
Json read_golden(const std::string& name);
// Every `step`-th of the 1,000 strings.
std::vector<std::string> golden_strings(size_t step = 1);

// Ids with and without special tokens parsed, decoded text, and text streamed id by id; each difference is one
// GoogleTest failure that shows string and ids.
void expect_golden(const Tokenizer& tokenizer, const Json& golden, const std::vector<std::string>& strings);

// Path of a downloaded model; empty if it is not there.
std::filesystem::path find_test_model(const std::string& file);

}  // namespace asymkv
