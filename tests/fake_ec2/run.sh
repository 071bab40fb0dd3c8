#!/bin/bash
# Runs pytest with the arguments given in a world of its own, which is built first; where this machine cannot
# have one, outside: the tests then say why they are skipped.
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
# The world dies with whoever waits for it.
exec setpriv --pdeathsig KILL tests/fake_ec2/world.sh "${pytest[@]}"
