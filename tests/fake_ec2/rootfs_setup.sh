#!/bin/bash
# Runs once, by build.sh, inside the new root file system (chroot, no network needed).
# $1: hash of the SkyPilot wheel that the runtime below was installed from.
set -euo pipefail
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# The user that SkyPilot's AWS images have. '*': no password, but not locked (sshd without PAM).
useradd -m -u 1000 -s /bin/bash ubuntu; usermod -p '*' ubuntu
echo 'ubuntu ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/ubuntu
mkdir -p /etc/systemd /run/sshd /etc/apt/apt.conf.d
printf '#!/bin/sh\nexit 0\n' > /usr/local/bin/systemctl; chmod 755 /usr/local/bin/systemctl
ln -sf /usr/local/bin/systemctl /usr/bin/systemctl
cat > /etc/ssh/sshd_config.d/fake.conf <<'S'
UsePAM no
UseDNS no
MaxSessions 200
MaxStartups 150:30:200
SetEnv AWS_ENDPOINT_URL=http://198.18.0.1:5566 SKYPILOT_DISABLE_USAGE_COLLECTION=1
S

# What SkyPilot would install on first contact. It looks for each of these and, finding it,
# installs nothing: ~/.local/bin/uv, ~/skypilot-runtime with ray, ~/sky-user-env, the wheel's hash.
su ubuntu -s /bin/bash -c '
    set -e; export HOME=/home/ubuntu; cd; W=/mnt/wheelhouse
    python3 -m venv skypilot-runtime
    skypilot-runtime/bin/pip install -q --no-index --find-links $W uv
    mkdir -p .local/bin .sky/wheels .sky/sky_app sky_workdir
    mv skypilot-runtime/bin/uv .local/bin/uv
    VIRTUAL_ENV=$HOME/skypilot-runtime .local/bin/uv pip install -q --no-cache --no-index --find-links $W --no-deps -r $W/req.txt
    VIRTUAL_ENV=$HOME/skypilot-runtime .local/bin/uv pip install -q --no-cache --no-index --no-deps $W/skypilot-*.whl
    mkdir -p skypilot-runtime/bin
    python3 -m venv --system-site-packages sky-user-env
    echo "'"$1"'" > .sky/wheels/current_sky_wheel_hash
    skypilot-runtime/bin/python -m compileall -q -j 0 skypilot-runtime/lib >/dev/null 2>&1 || true'

# What a peer's program needs, where the setup of a VM looks for it before it installs anything: an environment
# whose packages are the host's .venv's, seen read-only by vm_init.sh.
mkdir -p /opt/orch/site-packages
python3 -m venv /opt/orch/env
echo /opt/orch/site-packages > "$(echo /opt/orch/env/lib/python3*/site-packages)/host.pth"
chown -R ubuntu: /opt/orch/env
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /root/.cache /home/ubuntu/.cache
