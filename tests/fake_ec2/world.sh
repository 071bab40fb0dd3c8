#!/bin/bash
# A world: private network, processes, mounts, /tmp and /dev/shm, with a fake EC2 in it. Runs COMMAND
# there and ends with its exit status. The kernel ends everything that was started inside with
# it, even if this script is killed.
#   tests/fake_ec2/world.sh COMMAND [ARG ...]
# In the world: $HOME is a seeded one, AWS_ENDPOINT_URL is set, `sky api start` works, there is
# no way out, the VMs are 198.18.x.y, the admin API is http://127.0.0.1:5567 (docs/fake-ec2.md).
# FAKE_EC2_BINDS="/on/host:/in/vm ...": more folders that every VM sees, read-only.
# FAKE_EC2_LOGS=DIR: leave the logs there at the end.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if [ "${1:-}" != --inside ]; then
    [ -e "$ORCH_FAKE_EC2_DIR/rootfs/.ready" ] || { echo "run tests/fake_ec2/build.sh first" >&2; exit 2; }
    exec unshare "${AS_ROOT[@]}" --net --mount --pid --uts --ipc --fork --kill-child --mount-proc \
        "${BASH_SOURCE[0]}" --inside "$@"
fi
shift
ip link set lo up
ip link add fake0 type bridge
ip addr add 198.18.0.1/15 dev fake0
ip addr add 169.254.169.254/32 dev fake0       # the instance metadata service
ip link set fake0 up

# A separate /tmp for the world, in which the needed folders of the host's /tmp keep their paths.
packages=$("$ORCH_FAKE_EC2_PYTHON" -Bc 'import sysconfig; print(sysconfig.get_path("purelib"))')
base=$("$ORCH_FAKE_EC2_PYTHON" -Bc 'import sys; print(sys.base_prefix)')
here=$PWD
mount --rbind /tmp /mnt
mount -t tmpfs -o mode=1777,size=75% tmp /tmp
mount -t tmpfs -o mode=1777 tmp /dev/shm
for kept in "$ORCH_ROOT" "$ORCH_FAKE_EC2_DIR" "$ORCH_SWIFT_VENV" "$packages" "$base" "$here" "${FAKE_EC2_LOGS:-}"; do
    case $kept in
    /tmp/*) mkdir -p "$kept" "/mnt/${kept#/tmp/}"; mount --rbind "/mnt/${kept#/tmp/}" "$kept" ;;
    esac
done
umount -l /mnt
cd "$here"

export FAKE_EC2_STATE=/tmp/fake-ec2 HOME=/tmp/fake-ec2/home TMPDIR=/tmp
mkdir -p "$FAKE_EC2_STATE/vms"
cp -a "$ORCH_FAKE_EC2_DIR/home" "$HOME"
find "$HOME/.sky/wheels" -exec touch {} +       # newer than SkyPilot's folders, so that it is not rebuilt
unset AWS_PROFILE AWS_DEFAULT_REGION AWS_CA_BUNDLE AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY XDG_CACHE_HOME
export AWS_ENDPOINT_URL=http://127.0.0.1:5566   # the credentials are in $HOME/.aws, where SkyPilot expects them
export AWS_EC2_METADATA_DISABLED=true
export SKYPILOT_DISABLE_USAGE_COLLECTION=1 PATH=$(dirname "$ORCH_FAKE_EC2_PYTHON"):$PATH
# The VMs' programs use the packages of this Python (their /opt/orch/env looks there).
export FAKE_EC2_BINDS="$packages:/opt/orch/site-packages ${FAKE_EC2_BINDS:-}"
printf '[{"ami_id": "ami-0fa4eec2000000001", "name": "fake", "description": "fake", "owner_id": "801119661308",
  "public": true, "virtualization_type": "hvm", "architecture": "x86_64", "state": "available", "platform": null,
  "image_type": "machine", "hypervisor": "xen", "root_device_name": "/dev/sda1", "root_device_type": "ebs",
  "sriov": "simple", "creation_date": "2025-01-01T00:00:00.000Z"}]' > "$FAKE_EC2_STATE/amis.json"
MOTO_AMIS_PATH=$FAKE_EC2_STATE/amis.json "$ORCH_FAKE_EC2_PYTHON" -B "$FAKE_EC2_SRC/server.py" \
    > "$FAKE_EC2_STATE/fake_ec2.log" 2>&1 &
until curl -sf http://127.0.0.1:5567/ls >/dev/null; do
    kill -0 $! || { cat "$FAKE_EC2_STATE/fake_ec2.log"; exit 1; }; sleep 0.2
done
status=0
"$@" || status=$?
if [ -n "${FAKE_EC2_LOGS:-}" ]; then
    mkdir -p "$FAKE_EC2_LOGS"
    cp -r "$FAKE_EC2_STATE/fake_ec2.log" "$HOME/.sky/api_server" "$HOME/sky_logs" "$FAKE_EC2_LOGS/" 2>/dev/null || true
    for d in "$FAKE_EC2_STATE"/vms/*/; do cp "$d/console.log" "$FAKE_EC2_LOGS/$(basename "$d").log" 2>/dev/null || true; done
fi
exit $status
