# Shared by tools/demo.sh and tools/test.sh: sourced, not run.
# build TARGET...: configures the `cpu` preset into build/ and builds the targets.
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/contexture"

# As many compilers at once as there are cores, and 2.5 GB of free memory for each: LibTorch's headers need it.
build_jobs() {
  local cores gigabytes_times_10 jobs
  cores="$(nproc)"
  gigabytes_times_10="$(awk '/^MemAvailable:/{print int($2 / 104858)}' /proc/meminfo)"
  jobs=$((gigabytes_times_10 / 25))
  if [ "$jobs" -gt "$cores" ]; then jobs="$cores"; fi
  if [ "$jobs" -lt 1 ]; then jobs=1; fi
  echo "$jobs"
}

build() {
  (cd "$root" && cmake --preset cpu "${configure_options[@]}" && cmake --build build --parallel "$(build_jobs)" "$@")
}
configure_options=()
