#!/bin/bash
# Installs the Debian 12 packages that building and testing need, and nothing else. docs/dependencies.md says why each.
#
#     scripts/install_deps.sh            what a build and its tests need
#     scripts/install_deps.sh --tools    also clang with its sanitizers and fuzzer, clang-format and clang-tidy
#
# Asks apt only for what is missing, so a second call needs neither network nor root.
set -euo pipefail

packages=(ca-certificates build-essential cmake ninja-build pkg-config ccache git python3 python3-pip
          libfmt-dev nlohmann-json3-dev libcli11-dev libboost-dev libssl-dev libpcre2-dev libutf8proc-dev libtbb-dev libhwy-dev
          libcairo2-dev libgtest-dev libgmock-dev)
tools=(clang-14 libclang-rt-14-dev clang-format clang-tidy)

case "${1:-}" in
  "") ;;
  --tools) packages+=("${tools[@]}") ;;
  *)
    echo "install_deps.sh: unknown argument \"$1\"; the only one is --tools" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_deps.sh: all ${#packages[@]} packages are installed"
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "install_deps.sh: run as root, or install these packages: ${missing[*]}" >&2
  exit 1
fi
echo "install_deps.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
