#!/bin/bash
# Configures a CMake preset and builds targets of it (all of them if none is named), with ccache where it is installed.
#
#     scripts/build.sh PRESET [TARGET...]        for example: scripts/build.sh release asymkv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?build.sh: name a preset of CMakePresets.json, for example release}
shift
if command -v ccache >/dev/null; then
  # Paths relative to this checkout: another checkout of the same sources finds the same objects.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
# ASYMKV_CMAKE_ARGS: extra -D options, for example -DASYMKV_CUDA_INSTANCES=reduced.
# shellcheck disable=SC2086
cmake --preset "$preset" --log-level=NOTICE ${ASYMKV_CMAKE_ARGS:-}
targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build "build/$preset" --parallel "${ASYMKV_BUILD_JOBS:-$(nproc)}" "${targets[@]}"
