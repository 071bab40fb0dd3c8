#!/bin/sh
# Run a command with a /tmp and a /dev/shm of its own, so that it can run beside tests that look for files left there.
# `tests/apart.sh --check` says whether this user may do that (root may).
set -eu
[ "${1:-}" != --check ] || exec unshare --mount mount -t tmpfs tmpfs /dev/shm 2>/dev/null
folder=$(mktemp -d /tmp/apart-XXXXXX)
chmod 1777 "$folder"
unshare --mount --propagation private sh -euc \
    'mount --bind "$0" /tmp; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec "$@"' "$folder" "$@" &
command=$!
trap 'rm -rf "$folder"' EXIT
trap 'kill -INT "$command"; wait "$command"; exit 143' INT TERM HUP
wait "$command"
