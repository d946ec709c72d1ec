#!/usr/bin/env bash
# Makes a Debian 12 machine ready to build and test Contexture: Debian packages that are missing, LibTorch, and a
# private Python environment for the tests that compare with other readers. Whatever is already there is left alone.
#
# usage: tools/setup.sh [--no-tests]
#   --no-tests  without what only the tests use (browser, clang-format, Python environment)
#
# Downloads are pinned by checksum (tools/wheels.txt and tools/test_requirements.txt) and kept, with LibTorch, in
# ${XDG_CACHE_HOME:-~/.cache}/contexture.
set -euo pipefail

tools="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/contexture"
tests=1
for option in "$@"; do
  case "$option" in
    --no-tests) tests=0 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "setup: unknown option '$option'; see tools/setup.sh --help" >&2; exit 2 ;;
  esac
done

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# --- Debian packages --------------------------------------------------------------------------------------------
packages=(g++ cmake ninja-build ccache unzip python3 python3-venv python3-pip
  libfaiss-dev liblapack-dev libblas-dev libopencv-core-dev libopencv-imgproc-dev libopencv-imgcodecs-dev
  libsentencepiece-dev nlohmann-json3-dev libarchive-dev libcli11-dev libspdlog-dev libfmt-dev libicu-dev
  libgloo-dev libgtest-dev)
if [ "$tests" = 1 ]; then packages+=(chromium clang-format); fi

install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || {
    say "no apt-get here: install the libraries that README.md names under 'Any other Linux' yourself"
    return
  }
  local missing=() name
  for name in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  say "installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo: run 'apt-get install ${missing[*]}' as root, then this again"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}
install_packages

[ "$(uname -m)" = x86_64 ] || fail "LibTorch's wheel is for x86-64 only; pass your own with -DCONTEXTURE_LIBTORCH"
mkdir -p "$cache"
exec 9>"$cache/.setup.lock"  # two set-ups at once: the second waits, then finds everything done
flock 9

# --- LibTorch and the CUDA libraries it is linked with ------------------------------------------------------------
# unpack FOLDER: downloads the wheels of tools/wheels.txt, checked against their SHA-256, and unpacks what C++ programs use.
unpack() {
  local name version
  mkdir -p "$cache/wheels"
  python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --require-hashes \
    --python-version 3.11 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest "$cache/wheels" -r "$tools/wheels.txt" >&2 ||
    fail "a download failed or did not have its checksum"
  grep -v '^#' "$tools/wheels.txt" | while read -r name _; do
    version="${name##*==}" name="${name%%==*}"
    # unzip exits with 11 where a pattern matches nothing: only torch's own wheel has torch/.
    unzip -q -o "$cache/wheels/${name//-/_}-$version-"*.whl 'torch/include/*' 'torch/lib/*' 'nvidia/*' -d "$1" \
      2>/dev/null || [ $? = 11 ] || fail "can't unpack $name"
  done
}

libtorch="$cache/libtorch-2.11.0"
# The mark names the pins, so that a changed pin unpacks anew.
pins="$(grep -v '^#' "$tools/wheels.txt" | sha256sum | cut -c1-16)"
if [ "$(cat "$libtorch/complete" 2>/dev/null)" != "$pins" ]; then
  say "fetching LibTorch 2.11.0 (530 MB) into $libtorch"
  work="$(mktemp -d "$cache/.libtorch.XXXXXX")"
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/tree"
  unpack "$work/tree"
  for file in torch/include/ATen/ATen.h torch/lib/libtorch_cpu.so torch/lib/libgomp.so.1 \
      nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13; do
    [ -e "$work/tree/$file" ] || fail "the wheels do not hold $file"
  done
  echo "$pins" >"$work/tree/complete"
  # A rename, so that nobody ever sees half of it; a running program keeps the files it has mapped.
  if [ -e "$libtorch" ]; then mv "$libtorch" "$work/old"; fi
  mv "$work/tree" "$libtorch"
  rm -rf "$work"
  trap - EXIT
fi

# --- Python for the tests that compare with other readers -------------------------------------------------------------
if [ "$tests" = 1 ]; then
  venv="$cache/test-venv"
  pins="$( { cat "$tools/test_requirements.txt"; python3 -VV; } | sha256sum | cut -c1-16)"
  if [ "$(cat "$venv/complete" 2>/dev/null)" != "$pins" ]; then
    say "making the tests' Python environment $venv"
    rm -rf "$venv"
    python3 -m venv "$venv" >&2
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --only-binary :all: \
      --require-hashes -r "$tools/test_requirements.txt" >&2
    echo "$pins" >"$venv/complete"
  fi
fi
say "ready"
