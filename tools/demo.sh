#!/usr/bin/env bash
# From nothing to the demo's report: sets the machine up (Debian 12), builds the program, builds the demo set, trains
# on it and evaluates. Arguments go to `contexture demo`, as in: tools/demo.sh --set run.dir=runs/mine
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

"$root/tools/setup.sh" --no-tests
build --target contexture
"$root/tools/demo_data"
exec "$root/build/bin/contexture" demo "$@"
