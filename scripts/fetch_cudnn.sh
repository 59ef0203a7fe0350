#!/bin/bash
# Fetches what prefill on the GPU needs beside the CUDA toolkit: cuDNN (headers and libraries, NVIDIA's own licence) and
# its header-only front end (Apache-2.0 and MIT), as PyPI wheels pinned by hash. Optional: a build without them refuses
# prefill with a sentence.
#
#     scripts/fetch_cudnn.sh DIR && cmake --preset cuda -DASYMKV_CUDNN_ROOT=DIR
set -euo pipefail
dir=${1:?usage: scripts/fetch_cudnn.sh DIR}
mkdir -p "$dir/wheels"
cat > "$dir/requirements.txt" <<'PINS'
nvidia-cudnn-cu13==9.19.0.56 --hash=sha256:d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
nvidia-cudnn-frontend==1.32.0 --hash=sha256:c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
PINS
python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --python-version 3.11 \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 -r "$dir/requirements.txt" -d "$dir/wheels"
unzip -q -o "$dir"/wheels/nvidia_cudnn_cu13-*.whl 'nvidia/cudnn/*' '*.dist-info/licenses/*' -d "$dir/unpacked"
unzip -q -o "$dir"/wheels/nvidia_cudnn_frontend-*.whl 'include/*' '*.dist-info/licenses/*' -d "$dir/unpacked"
mkdir -p "$dir/cudnn"
# The front end's headers look for each other through a folder named include.
cp -r "$dir/unpacked/include" "$dir/"
cp -r "$dir/unpacked/nvidia/cudnn/include" "$dir/unpacked/nvidia/cudnn/lib" "$dir/cudnn/"
mkdir -p "$dir/licenses"
for package in "$dir"/unpacked/*.dist-info; do cp -r "$package/licenses" "$dir/licenses/$(basename "$package" .dist-info)"; done
rm -r "$dir/wheels" "$dir/unpacked" "$dir/requirements.txt"
echo "cuDNN 9.19.0 and its front end 1.32.0 are in $dir"
