#!/bin/sh
# Run a command with a /tmp and a /dev/shm of its own, so that it can run beside tests that look for files left there.
# `tests/apart.sh --check` says whether this user may do that here (root may, outside of /tmp).
set -eu
if [ "${1:-}" = --check ]; then
    case "$(pwd -P):${ORCH_SHARED:-}:" in /tmp/* | *:/tmp/*) exit 1 ;; esac
    exec unshare --mount mount -t tmpfs tmpfs /dev/shm 2>/dev/null
fi
folder=$(mktemp -d /tmp/apart-XXXXXX)
chmod 1777 "$folder"
trap 'rm -rf "$folder" || :' EXIT
# In a session of its own: only this script interrupts it, once.
setsid unshare --mount --propagation private sh -euc \
    'mount --bind "$0" /tmp; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec "$@"' "$folder" "$@" &
command=$!
stop() {
    kill -INT "$command" 2>/dev/null || :
    for _ in $(seq 60); do
        kill -0 "$command" 2>/dev/null || exit 130
        sleep 1
    done
    kill -TERM "$command" 2>/dev/null || :
    wait "$command" || :
    exit 130
}
trap stop INT TERM HUP
wait "$command"
