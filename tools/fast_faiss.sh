#!/usr/bin/env bash
# Builds FAISS from Debian's source package for processors with AVX2 and FMA, which Debian's own library does without,
# and keeps it in ${XDG_CACHE_HOME:-~/.cache}/contexture/faiss-avx2. CMake prefers it from then on (a configured build
# folder: cmake build -UFAISS_LIBRARY). Takes about three minutes on two cores; a second call finds it done.
#
# The source is fetched with apt-get, which checks its signature, through a private list of source packages: the
# system's own lists stay as they are. Needs libfaiss-dev, dpkg-dev, cmake, ninja-build and a compiler.
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/contexture"
target="$cache/faiss-avx2"
say() { echo "fast_faiss: $*" >&2; }
fail() { say "$*"; exit 1; }

version="$(dpkg-query -W -f '${source:Version}' libfaiss-dev 2>/dev/null)" || fail "install libfaiss-dev first: tools/setup.sh"
if [ "$(cat "$target/complete" 2>/dev/null)" = "$version" ]; then
  say "$target is current ($version)"
  exit 0
fi
grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo || fail "this processor has no AVX2 or no FMA: Debian's library is the one to use"
for tool in dpkg-source cmake ninja; do
  command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install dpkg-dev cmake ninja-build"
done

mkdir -p "$cache"
work="$(mktemp -d "$cache/.faiss.XXXXXX")"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/source"
# The archive that libfaiss-dev comes from, asked for its sources.
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) main' \
  'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || fail "apt-get knows no Debian archive"
private=(-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o APT::Sandbox::User=root -o "Dir::Cache::srcpkgcache=$work/srcpkgcache.bin" -o "Dir::Cache::pkgcache=$work/pkgcache.bin")
say "fetching the source of FAISS $version"
apt-get -qq "${private[@]}" update >&2
(cd "$work/source" && apt-get -qq "${private[@]}" source --only-source "faiss=$version" >&2) ||
  fail "Debian's archive does not have the source of faiss $version"
source="$(find "$work/source" -mindepth 1 -maxdepth 1 -type d)"

say "building (about three minutes)"
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFAISS_OPT_LEVEL=avx2 -DFAISS_ENABLE_GPU=OFF \
  -DFAISS_ENABLE_PYTHON=OFF -DBUILD_TESTING=OFF -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON >"$work/log" 2>&1 &&
  cmake --build "$work/build" --target faiss_avx2 >>"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; fail "the build failed"; }
mkdir -p "$work/install/lib"
cp "$work/build/faiss/libfaiss_avx2.a" "$work/install/lib/"
echo "$version" >"$work/install/complete"
rm -rf "$target"
mv "$work/install" "$target"
say "$target is ready"
