#!/bin/bash
# Makes, once and where the registries can be reached, all that a world needs later without
# any network: a seeded HOME, the VMs' root file system.
#   tests/fake_ec2/build.sh            makes what is missing
#   tests/fake_ec2/build.sh --again    makes it anew
# Exit 3 and one line on stderr where this machine cannot have a fake EC2.
set -euo pipefail
. "$(dirname "$0")/env.sh"
D=$ORCH_FAKE_EC2_DIR PY=$ORCH_FAKE_EC2_PYTHON SUITE=bookworm  # its python3 is one that Ray 2.9.3 knows
cannot() { echo "no fake EC2 on this machine: $*" >&2; exit 3; }
gone() { [ ! -e "$1" ] || unshare "${AS_ROOT[@]}" --mount rm -rf --one-file-system "$1"; }

[ "$(uname -s)" = Linux ] || cannot "it needs Linux"
"$PY" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    cannot "the VMs share the packages of .venv and have Python 3.11: make it again with PYTHON=python3.11"
"$PY" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("sky") and u.find_spec("moto")))' ||
    cannot "SkyPilot and moto are not in .venv: run make test-cloud, which installs them"

need=(ip:iproute2 curl:curl ssh:openssh-client rsync:rsync ps:procps)
[ -e "$D/rootfs/.ready" ] || need+=(mmdebstrap:mmdebstrap)
[ "$(id -u)" = 0 ] || need+=(newuidmap:uidmap)
packages=()
for n in "${need[@]}"; do command -v "${n%%:*}" >/dev/null || packages+=("${n#*:}"); done
if [ ${#packages[@]} != 0 ]; then
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } ||
        cannot "it needs ${packages[*]}: apt-get install them"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } \
        > /dev/null || cannot "apt-get could not install ${packages[*]}"
fi
unshare "${AS_ROOT[@]}" --net --mount --pid --uts --ipc --fork true 2>/dev/null ||
    cannot "namespaces are not allowed here (or, without root, the user has no line in /etc/subuid and /etc/subgid)"

# One build at a time; the folder is complete when rootfs/.ready is there.
mkdir -p "$D"
exec 9> "$D.lock"; flock 9
[ "${1:-}" != --again ] || for x in home rootfs wheelhouse tools; do gone "$D/$x"; done

# The VMs' wheel of SkyPilot is made anew (with pip, from the network) when a folder of the package is newer, and
# importing a module makes __pycache__ in its folder: compile all of it now. World.sh dates the wheel.
sky=$("$PY" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("sky").origin))')
"$PY" -m compileall -q "$sky" "$(dirname "$sky")/sky_templates" >/dev/null 2>&1 || true
if [ ! -e "$D/home/.ready" ]; then
    gone "$D/home"
    "$PY" "$FAKE_EC2_SRC/seed_home.py" "$D/home"
    mkdir "$D/home/t" # SkyPilot copies the wheel to a name in TMPDIR that all users share
    HOME=$D/home TMPDIR=$D/home/t SKYPILOT_DISABLE_USAGE_COLLECTION=1 "$PY" -c \
        'from sky.backends import wheel_utils as w; print("wheel", w.build_sky_wheel()[1])'
    rm -r "$D/home/t"
    touch "$D/home/.ready"
fi

if [ ! -e "$D/rootfs/.ready" ]; then
    W=$D/wheelhouse
    for x in rootfs wheelhouse tools; do gone "$D/$x"; done
    mkdir -p "$D/rootfs" "$W"
    # What SkyPilot's set-up in a VM would download. Fetched here, installed there offline.
    wheel=$(ls "$D"/home/.sky/wheels/*/skypilot-*.whl); hash=$(basename "$(dirname "$wheel")")
    printf '%s\n' "skypilot[aws,remote] @ file://$wheel" 'ray[default]==2.9.3' 'pydantic-core==2.41.1' \
        'click<8.2' 'setuptools<70' wheel pip uv > "$W/in.txt"
    "$PY" -m pip install -qq --target "$D/tools" uv
    "$D/tools/bin/uv" pip compile -q --python-version 3.11 --no-header --no-annotate -o "$W/all.txt" "$W/in.txt"
    grep -v '^skypilot' "$W/all.txt" > "$W/req.txt"
    "$PY" -m pip wheel -qq --no-deps -w "$W" -r "$W/req.txt"  # gpustat has only a source archive
    cp "$wheel" "$W/"
    packages=openssh-server,sudo,rsync,curl,ca-certificates,python3,python3-venv,tini,iproute2
    packages+=,iputils-ping,procps,psmisc,netcat-openbsd,patch,less,git
    # The host's own sources where they are of the same Debian: they may name a mirror.
    sources=()
    if grep -qs "VERSION_CODENAME=$SUITE" /etc/os-release; then
        sources=(/etc/apt/sources.list.d/debian.sources)
        [ -e "${sources[0]}" ] || sources=(/etc/apt/sources.list)
    fi
    if [ "$(id -u)" = 0 ]; then mode=root; else mode=unshare; fi
    mmdebstrap --quiet --mode=$mode --variant=minbase --format=tar --include=$packages \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        $SUITE - "${sources[@]}" |
        unshare "${AS_ROOT[@]}" --mount tar -xpf - -C "$D/rootfs" --exclude='./dev/*'
    unshare "${AS_ROOT[@]}" --mount --pid --fork bash -c '
        set -e; cd "$1/rootfs"
        mkdir -p mnt/wheelhouse; mount --bind "$1/wheelhouse" mnt/wheelhouse
        mount -t proc proc proc
        install -m 755 "$3/nvidia-smi" usr/local/bin/nvidia-smi
        for d in null urandom; do touch dev/$d; mount --bind /dev/$d dev/$d; done
        chroot . bash -s "$2" < "$3/rootfs_setup.sh"' - "$D" "$hash" "$FAKE_EC2_SRC"
    for x in wheelhouse tools; do gone "$D/$x"; done
    unshare "${AS_ROOT[@]}" touch "$D/rootfs/.ready"
fi
"$PY" -c 'from cloud.storage.swift_environment import swift_environment; swift_environment()'
echo "ready: $D"
