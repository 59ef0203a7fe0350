#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "asymkv/base/error.h"

namespace asymkv::test {

// The call throws an Error of this code whose sentence contains `words`.
inline void expect_error(const std::function<void()>& call, ErrorCode code, std::string_view words) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(error_code_name(e.code()), error_code_name(code)) << e.what();
    EXPECT_THAT(e.what(), testing::HasSubstr(std::string(words)));
    return;
  }
  ADD_FAILURE() << "no error; expected one about: " << words;
}

}  // namespace asymkv::test
