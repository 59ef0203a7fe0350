#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "asymkv/base/error.h"

namespace asymkv::stats {

// The call must throw Error{kUsage} whose sentence contains `part`.
inline void expect_usage(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no error, expected one with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

}  // namespace asymkv::stats
