# Every third-party library the project links, found once. docs/dependencies.md says why each is here.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Boost 1.74 REQUIRED)   # header-only Boost.Math
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)

# Debian's oneDNN package configuration asks for OpenCL, which the CPU build does not need: find the library itself.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
add_library(asymkv_dnnl INTERFACE)
target_include_directories(asymkv_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(asymkv_dnnl INTERFACE ${DNNL_LIBRARY})
