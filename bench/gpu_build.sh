#!/bin/bash
# Builds the device tests and the measuring program with nvcc and g++ alone, all files side by side, where the project's
# other libraries are missing. Headers of fmt, nlohmann-json, OpenSSL and GoogleTest come from DEPS/include, libgtest.a
# and libcrypto.a from DEPS/lib (or from the system if DEPS is unset).
# With CUDNN=folder of the nvidia-cudnn package (include/, lib/) and CUDNN_FRONTEND=its front end's headers, prefill is
# built too (scripts/fetch_cudnn.sh fetches both).
# Usage: [DEPS=dir] [INSTANCES="bf16_e4m3_d128 ..."] [TARGETS="..."] bench/gpu_build.sh OUT_DIR [SOURCE_ROOT]
set -u
out=$1
root=${2:-$(cd "$(dirname "$0")/.." && pwd)}
src=$root/src
kernels=$src/asymkv/kernels/cuda
mkdir -p "$out"
deps=${DEPS:-/usr}
all=$(cd "$kernels/instances" && ls decode_*.cu | sed 's/decode_//; s/\.cu//')
instances=${INSTANCES:-$all}
defines="-DASYMKV_CUDA_BUILT=1 -DFMT_HEADER_ONLY=1"
if [ "$instances" != "$all" ]; then  # a table of the chosen instances only
  { sed -n '1,/^std::vector<DecodeInstance> collect/p' "$kernels/instance_table.cc"
    echo '  std::vector<DecodeInstance> all;'
    for i in $instances; do echo "  for (const auto& x : decode_$i()) all.push_back(x);"; done
    echo '  return all;'
    sed -n '/^  return all;/,$p' "$kernels/instance_table.cc" | tail -n +2; } > "$out/instance_table.cc"
else
  cp "$kernels/instance_table.cc" "$out/instance_table.cc"
fi
hash=$(cat "$kernels"/*.cuh "$kernels"/*.cu "$kernels"/instances/*.cu | sha256sum | cut -c1-16)
defines="$defines -DASYMKV_CUDA_BUILD_HASH='\"$hash\"' -DASYMKV_CUDA_COMPILER='\"nvcc-$(nvcc --version | grep -oE 'V[0-9.]+')\"'"
nv="nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++20 --expt-relaxed-constexpr --split-compile=4 -Xptxas -v -I$src"
cuda_include=$(dirname "$(dirname "$(command -v nvcc)")")/include
cc="g++ -std=c++20 -O2 -ffp-contract=off -I$src -I$deps/include -I$cuda_include"
without=sdpa_cudnn; cudnn_link=""
if [ -n "${CUDNN:-}" ] && [ -n "${CUDNN_FRONTEND:-}" ]; then
  without=sdpa_none
  cc="$cc -isystem $CUDNN_FRONTEND -isystem $CUDNN/include"
  cudnn_link="$CUDNN/lib/libcudnn.so.9 -Wl,-rpath,$CUDNN/lib -lnvrtc"
fi
{
  for i in $instances; do echo "$nv -c $kernels/instances/decode_$i.cu -o $out/i_$i.o"; done
  for f in "$kernels"/*.cu; do echo "$nv -c $f -o $out/k_$(basename "$f" .cu).o"; done
  echo "$cc $defines -c $out/instance_table.cc -o $out/h_instance_table.o"
  for f in "$kernels"/*.cc; do
    case $f in *_test.cc|*instance_table.cc|*_main.cc|*/$without.cc) ;; *) echo "$cc $defines -c $f -o $out/h_$(basename "$f" .cc).o" ;; esac
  done
  for f in base/error base/hash tensor/dtype kv/format kv/codec kv/rope kv/key_transform kv/layout kv/page_pool kv/cache \
           kv/tiled_layout ops/attention kernels/checks kernels/ref/ref_attention kernels/testing/attend_case device/cuda/device_cuda; do
    echo "$cc $defines -c $src/asymkv/$f.cc -o $out/l_${f//\//_}.o"
  done
  for f in decode_gpu_test write_gpu_test prefill_gpu_test cuda_attention_gpu_test kernel_bench_main prefill_bench_main; do
    [ -f "$kernels/$f.cc" ] && echo "$cc $defines -c $kernels/$f.cc -o $out/m_$f.o"
  done
} > "$out/commands"
xargs -P "$(nproc)" -d '\n' -I CMD sh -c 'CMD' < "$out/commands" > "$out/build.log" 2>&1
grep -E "error|undefined|fatal" "$out/build.log" | head -20
cudart="-L$(dirname "$cuda_include")/lib64 -lcudart_static -ldl -lrt -lpthread"
gtest=$deps/lib/libgtest.a; crypto=$deps/lib/libcrypto.a
[ -f "$gtest" ] || gtest=-lgtest
[ -f "$crypto" ] || crypto=-lcrypto
echo 'int main(int c, char** v) { testing::InitGoogleTest(&c, v); return RUN_ALL_TESTS(); }' |
  $cc -include gtest/gtest.h -x c++ -c - -o "$out/gtest_main.o"
status=0
for m in "$out"/m_*.o; do
  name=$(basename "$m" .o); name=${name#m_}; name=${name%_main}
  extra=""; case $name in *_test) extra="$out/gtest_main.o $gtest" ;; esac
  g++ -o "$out/$name" "$m" "$out"/[ihkl]_*.o $extra $crypto $cudart $cudnn_link || status=1
done
exit $status
