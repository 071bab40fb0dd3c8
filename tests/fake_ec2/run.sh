#!/bin/bash
# Runs pytest with the given arguments in a new world, which is built first. If this machine cannot have one, it runs
# outside, and the tests are skipped with the reason.
set -euo pipefail
cd "$(dirname "$0")/../.."
pytest=(.venv/bin/python -m pytest "$@")
missing=$(mktemp)
trap 'rm -f "$missing"' EXIT
status=0
tests/fake_ec2/build.sh 2> "$missing" || status=$?
cat "$missing" >&2
case $status in
0) ;;
3) ORCH_FAKE_EC2_MISSING=$(tail -1 "$missing"); export ORCH_FAKE_EC2_MISSING ;;
*) exit $status ;;
esac
rm -f "$missing"
[ -z "${ORCH_FAKE_EC2_MISSING:-}" ] || exec "${pytest[@]}"
# The world dies with the process that waits for it.
exec setpriv --pdeathsig KILL tests/fake_ec2/world.sh "${pytest[@]}"
