# Helpers that give every target the same warnings, sanitizers and include root.

set(ASYMKV_WARNINGS
    -Wall -Wextra -Wconversion -Wsign-conversion -Wvla -Wnon-virtual-dtor -Wcast-align -Wshadow)

function(asymkv_target_defaults target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${ASYMKV_WARNINGS}>)
  if(ASYMKV_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(ASYMKV_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ASYMKV_SANITIZE}
                                             -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(${target} PUBLIC -fsanitize=${ASYMKV_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC 12 takes what it instruments for uninitialised; the release build has the warning. AddressSanitizer stops at a
      # null pointer and at an object's end itself, and these checks cost a fifth of a file's compile time; the fuzzers'
      # clang has them, alignment among them.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized
                                               -fno-sanitize=null,object-size,alignment>)
    else()
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:
                             -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/sanitizer_ignorelist.txt>)
    endif()
  endif()
endfunction()

# asymkv_library(NAME [UNITY] SOURCES a.cc ... DEPS lib ...): a static library of one rung of the ladder. UNITY: its sources
# share no names of their own, so ASYMKV_UNITY may compile them in groups.
function(asymkv_library name)
  cmake_parse_arguments(ARG "UNITY" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  asymkv_target_defaults(${name})
  if(ASYMKV_UNITY AND ARG_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# Under sanitizers what a test itself does need not be fast, and its instrumented code compiles in half the time.
function(asymkv_test_options name)
  if(ASYMKV_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# Headers that take most of a test's compile time, read once (ASYMKV_PCH).
function(asymkv_precompile_test_headers name)
  if(NOT ASYMKV_PCH)
    return()
  endif()
  if(NOT TARGET asymkv_test_pch)
    file(WRITE ${PROJECT_BINARY_DIR}/test_pch.cc "")
    add_library(asymkv_test_pch OBJECT ${PROJECT_BINARY_DIR}/test_pch.cc)
    asymkv_target_defaults(asymkv_test_pch)
    asymkv_test_options(asymkv_test_pch)
    target_link_libraries(asymkv_test_pch PRIVATE GTest::gtest GTest::gmock nlohmann_json::nlohmann_json)
    target_precompile_headers(asymkv_test_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${name} REUSE_FROM asymkv_test_pch)
endfunction()

# asymkv_test(NAME SOURCES a_test.cc ... DEPS lib ... [LABELS l ...]): one GoogleTest program, one ctest entry.
# Tests find the source tree through the environment variable ASYMKV_SOURCE_DIR.
function(asymkv_test name)
  if(NOT ASYMKV_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  asymkv_target_defaults(${name})
  asymkv_test_options(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  asymkv_precompile_test_headers(${name})
  add_test(NAME ${name} COMMAND ${name})
  # What a sanitizer build needs: tests of the libraries, without the program, fetched models or a GPU.
  if(NOT TARGET host_tests)
    add_custom_target(host_tests)
  endif()
  if(NOT "${ARG_LABELS}" MATCHES "cli|large|model|gpu")
    add_dependencies(host_tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "ASYMKV_SOURCE_DIR=${PROJECT_SOURCE_DIR};ASYMKV_BINARY_DIR=${PROJECT_BINARY_DIR}"
    SKIP_REGULAR_EXPRESSION "ASYMKV_TEST_SKIPPED_ENTIRELY")
endfunction()
