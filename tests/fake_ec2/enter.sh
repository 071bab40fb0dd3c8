#!/bin/bash
# Runs COMMAND (default: a shell) in a world that is up, as if world.sh had started it.
#   tests/fake_ec2/enter.sh [COMMAND [ARG ...]]    FAKE_EC2_WORLD=PID: of its server.py, if several worlds are up
set -euo pipefail
inside=${FAKE_EC2_WORLD:-$(pgrep -f 'fake_ec2/server[.]py$')} || { echo "no world is up" >&2; exit 2; }
[[ $inside =~ ^[0-9]+$ ]] || { echo "several worlds are up, say which: FAKE_EC2_WORLD=${inside//$'\n'/ or }" >&2; exit 2; }
mapfile -d '' -t environment < "/proc/$inside/environ"
user=(); [ "$(readlink "/proc/$inside/ns/user")" = "$(readlink /proc/self/ns/user)" ] || user=(--user --preserve-credentials)
exec nsenter -t "$inside" "${user[@]}" --net --mount --pid --uts --ipc --wd="$PWD" \
    env -i "${environment[@]}" "TERM=${TERM:-dumb}" "${@:-bash}"
