#!/usr/bin/env bash
# Sets the machine up (Debian 12), builds everything and runs every test; the demo, which trains for minutes, comes
# last. Arguments go to ctest, as in: tools/test.sh -L unit
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

"$root/tools/setup.sh"
configure_options=(-DCONTEXTURE_TEST_PYTHON="$cache/test-venv/bin/python")
build
"$root/tools/demo_data"
"$root/tools/minilm" >/dev/null  # tests that compare with it skip without
# One at a time, in the order of tests/CMakeLists.txt: tests of operators use every core, and some measure time.
exec ctest --test-dir "$root/build" --output-on-failure "$@"
