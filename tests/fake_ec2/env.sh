# Locations. Sourced by the other scripts of this folder; every value can be set beforehand.
FAKE_EC2_SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ORCH_ROOT=$(cd "$FAKE_EC2_SRC/../.." && pwd)
: "${ORCH_FAKE_EC2_PYTHON:=$ORCH_ROOT/.venv/bin/python}"  # has the extra fake-ec2; Python 3.11, as the VMs' Debian
# The output of build.sh; other inputs get another folder.
_inputs=$(cat "$FAKE_EC2_SRC"/{build.sh,rootfs_setup.sh,seed_home.py,nvidia-smi} | sha256sum)
: "${ORCH_FAKE_EC2_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/orch-fake-ec2-${_inputs:0:12}}"
# The object store's Python environment, shared with the other tests.
: "${ORCH_SWIFT_VENV:=${XDG_CACHE_HOME:-$HOME/.cache}/orch-tests/swift-venv}"
export FAKE_EC2_SRC ORCH_ROOT ORCH_FAKE_EC2_PYTHON ORCH_FAKE_EC2_DIR ORCH_SWIFT_VENV

# Without root: one more namespace, in which this user is uid 0 and its subordinate ids
# (/etc/subuid, newuidmap) are the VM's other users.
if [ "$(id -u)" = 0 ]; then AS_ROOT=(); else AS_ROOT=(--user --map-root-user --map-auto); fi
