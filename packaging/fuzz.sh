#!/bin/sh
# Random guests, files and messages for some seconds in all, each target for its share of them.
#
#     packaging/fuzz.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
programs="-p forkd-devices -p forkd-vmm"
# shellcheck disable=SC2086  # several words
targets=$(cargo test --release -q $programs fuzz -- --list 2>/dev/null | grep -c 'fuzz.*: test$')
[ "$targets" -gt 0 ] || { echo "there is nothing to run" >&2; exit 1; }
echo "$targets targets, $seconds seconds"
# shellcheck disable=SC2086
FORKD_FUZZ_MILLIS=$((seconds * 1000 / targets)) cargo test --release $programs fuzz -- --test-threads 1
