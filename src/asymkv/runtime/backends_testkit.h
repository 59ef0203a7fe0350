#pragma once

#include <iostream>

#include "asymkv/runtime/backends.h"

namespace asymkv::test {

// Whether there is no GPU for these tests, said the way ctest reads a skipped test.
inline bool cannot_run_cuda() {
  for (const BackendChoice& choice : list_backends()) {
    if (choice.name != "cuda" || choice.available) continue;
    std::cout << "ASYMKV_TEST_SKIPPED_ENTIRELY: " << choice.reason << "\n";
    return true;
  }
  return false;
}

}  // namespace asymkv::test
