"""The script that runs on a VM: get the environment ready, open what is sealed, run the program. Pure text."""

from __future__ import annotations

import shlex

from cloud.networks.tuning import SYSCTLS
from cloud.provider import LaunchRequest
from cloud.vendors import RENTED

FOLDER = "orch-vm"  # in the VM user's home
NEIGHBOURS = "neighbours"  # the file with what VMs are told of internal addresses
PEERS_VARIABLE = "ORCH_INITIAL_PEERS"  # whom the program is to join, when its config asks for it
CLOCK_VARIABLE = "ORCH_CLOCK"  # the controller's time, and this machine's monotonic one then (experiments.peer.swarm.clock)
_WAIT_S = 900  # to be told whom to join: one first peer may fail on the way
# Each step's limit on the VM itself: before its program runs a VM has no lease.
_SETUP_S = 1200  # the experiment's own `setup`
_ENVIRONMENT_S = 300  # making the Python environment
_INSTALL_S = 1200  # installing the peer's requirements into it
_ADDRESS_S = 300  # to be told its public address, before the cloud's metadata is asked
_KILL_S = 30  # from SIGTERM to SIGKILL, of a step past its limit
_SLACK_S = 60.0  # of the steps without a limit of their own, and until somebody sees them

SETUP_WITHIN_S = _SETUP_S + _KILL_S + _SLACK_S
"""A VM that works reports phase "setup" for no longer."""
INSTALL_WITHIN_S = _ENVIRONMENT_S + _INSTALL_S + 2 * _KILL_S + _ADDRESS_S + _SLACK_S
"""A VM that works reports phase "installing" for no longer."""

# Compares what an environment has with requirements.txt, of the packages named: prints what differs, exit 1 if anything does.
CHECK = """\
import sys
from importlib.metadata import PackageNotFoundError, version

wrong = []
for line in open(sys.argv[1]):
    name, _, wanted = line.strip().partition("==")
    if name not in sys.argv[2:]:
        continue
    try:
        found = version(name).partition("+")[0]
    except PackageNotFoundError:
        found = "none"
    if found != wanted:
        wrong.append(f"{name} {found} instead of {wanted}")
print("; ".join(wrong))
sys.exit(bool(wrong))
"""

_PACKAGES = ("hivemind", "torch", "webdataset", "boto3", "cryptography", "numpy")  # what every peer imports

_SCRIPT = r"""#!/bin/bash
# Runs on a VM as the job of its SkyPilot cluster, in ~/orch-vm. Says how far it is in job.json.
set -u
cd "$HOME/orch-vm" || exit 1
umask 077
say() {  # phase, exit code or null, error
    "$PYTHON3" -c 'import json, os, sys, time
phase, code, error = sys.argv[1:4]
with open("job.json.new", "w") as file:
    json.dump({"phase": phase, "exit_code": None if code == "null" else int(code), "error": error, "at_s": time.time()}, file)
os.replace("job.json.new", "job.json")' "$1" "$2" "$3"
}
fail() { say ended 1 "$1"; echo "orch: $1" >&2; exit 1; }
PYTHON3=$(command -v python3) || { echo "orch: the image has no python3" >&2; exit 1; }

# SkyPilot asked twice (its server died in between) makes two jobs: the second waits for the first one's end.
exec 9> .lock
flock 9
if [ -e exit_code ]; then exit "$(cat exit_code)"; fi

# Whatever happens to the controller: this VM ends. The program goes, then SkyPilot's autodown sees an idle VM,
# and if that fails too the machine is switched off.
LIFE=%(life_s)d
if [ "$LIFE" -gt 0 ] && [ ! -e life.pid ]; then
    setsid nohup bash -c 'echo $$ > life.pid; sleep '"$LIFE"'
        touch life_over; [ -e pid ] && kill -TERM "$(cat pid)"; sleep 20; [ -e pid ] && kill -KILL -- "-$(cat pid)"
        sleep %(grace_s)d; sudo -n shutdown -h now || sudo -n poweroff -f' 9>&- < /dev/null > life.log 2>&1 &
fi

say preparing null ""
GPU=%(gpu)s
if [ "$GPU" != no ]; then
    found=$(nvidia-smi -L 2>&1) || fail "no working GPU driver on this image (nvidia-smi: $(echo "$found" | head -1))"
fi
limited() { timeout -k %(kill_s)d "$@"; }  # seconds, command
say setup null ""
%(tuning)slimited %(setup_s)d bash setup.sh >> setup.log 2>&1 9>&- ||
    fail "the experiment's setup failed with exit code $?: $(tail -1 setup.log)"

say installing null ""
WHEEL=%(wheel)s WANTED=%(requirements)s
ready() {  # whether the environment in $1 has what the wheel needs
    [ -x "$1/bin/python" ] || return 1
    [ "$(cat "$1/requirements.sha256" 2>/dev/null)" = "$WANTED" ] && return 0
    why=$("$1/bin/python" check_versions.py requirements.txt %(packages)s 2>&1)
}
why=""
if ready /opt/orch/env; then ENV=/opt/orch/env
elif ready "$HOME/orch-env"; then ENV=$HOME/orch-env
else
    [ -z "$why" ] || echo "orch: the environment of the image does not fit: $why"
    ENV=$HOME/orch-env
    UV=$(command -v uv || ls "$HOME/.local/bin/uv" 2>/dev/null)
    index=""; [ "$GPU" != no ] || index="--extra-index-url https://download.pytorch.org/whl/cpu"
    if [ -n "$UV" ]; then
        [ "$GPU" != no ] && backend=auto || backend=cpu
        { [ -x "$ENV/bin/python" ] || limited %(environment_s)d "$UV" venv -q --python %(python)s "$ENV"; } \
            >> setup.log 2>&1 9>&- &&
            VIRTUAL_ENV=$ENV limited %(install_s)d "$UV" pip install -q --torch-backend "$backend" -r requirements.txt \
                >> setup.log 2>&1 9>&-
    else
        { [ -x "$ENV/bin/python" ] || limited %(environment_s)d "$PYTHON3" -m venv "$ENV"; } >> setup.log 2>&1 9>&- &&
            limited %(install_s)d "$ENV/bin/pip" install -q $index -r requirements.txt >> setup.log 2>&1 9>&-
    fi || fail "the peer's requirements could not be installed: $(tail -1 setup.log)${why:+ (and the image: $why)}"
    echo "$WANTED" > "$ENV/requirements.sha256"
fi
LIB=$HOME/orch-vm/lib-$(basename "$WHEEL" .whl)
[ -d "$LIB" ] || { "$ENV/bin/python" -m zipfile -e "$WHEEL" "$LIB.new" && mv "$LIB.new" "$LIB"; } ||
    fail "$WHEEL cannot be unpacked"
export PYTHONPATH=$LIB PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

if [ -e sealed ]; then
    "$ENV/bin/python" -m cloud.sky.vm.secrets sealed config.json || fail "what was sealed for this VM cannot be opened"
    rm -f sealed
fi
unset %(key_variable)s

# The address that others reach us at: the controller writes it here as soon as it knows it; the cloud's own
# metadata is asked when nobody comes.
for n in $(seq $((2 * %(address_s)d))); do [ -s address ] && break; sleep 0.5; done
ORCH_PUBLIC_ADDRESS=$(cat address 2>/dev/null || true)
[ -n "$ORCH_PUBLIC_ADDRESS" ] || ORCH_PUBLIC_ADDRESS=$(
    %(address_commands)s)
[ -n "$ORCH_PUBLIC_ADDRESS" ] || fail "this VM does not learn its public address"
export ORCH_PUBLIC_ADDRESS ORCH_VM=%(vm)s

# Whom to join, told in the same way: the addresses of peers that are up now, or that this one begins the swarm.
WAIT=%(wait_s)d
if [ "$WAIT" -gt 0 ]; then
    say waiting null ""
    for n in $(seq $((2 * WAIT))); do { [ -s peers ] || [ -e life_over ]; } && break; sleep 0.5; done
    [ -s peers ] || [ -e life_over ] || fail "nobody told this VM whom to join within $WAIT s"
    export %(peers_variable)s=$(cat peers 2>/dev/null)
fi
# SkyPilot's job has one thread: all cores are ours.
cores=$(grep -c ^processor /proc/cpuinfo)
export OMP_NUM_THREADS=$cores MKL_NUM_THREADS=$cores

# The time as the controller told it at its last look.
export %(clock_variable)s="$(cat clock 2>/dev/null)"
[ ! -e life_over ] || fail "this VM has lived as long as it may"
say running null ""
"$ENV/bin/python" -c 'import importlib, os, sys
os.setsid()
with open("pid", "w") as file:
    file.write(str(os.getpid()))
module, _, name = sys.argv[1].partition(":")
result = getattr(importlib.import_module(module), name)("config.json")
sys.stdout.flush()
sys.exit(result if isinstance(result, int) else 0)' %(program)s > console.log 2>&1 < /dev/null 9>&- &
child=$!
wait $child
code=$?
rm -f pid
echo $code > exit_code
if [ -e life_over ]; then say ended $code "it had lived as long as it may"
elif [ $code -gt 128 ]; then say ended $code "its program was killed by signal $((code - 128))"
else say ended $code "its program ended with exit code $code"; fi
exit $code
"""

# A VM that refuses a setting trains all the same: setup.log says which, and what the kernel has in the end.
_TUNING = """\
# network_tuning: wan
tune() { sudo -n sysctl -qw "$1" || echo "orch: network_tuning: this VM refuses $1"; }
{
%(settings)s
    sudo -n modprobe tcp_bbr
    if grep -qw bbr /proc/sys/net/ipv4/tcp_available_congestion_control; then
        tune net.ipv4.tcp_congestion_control=bbr
    else
        echo "orch: network_tuning: this kernel has no bbr"
    fi
    for name in tcp_rmem tcp_wmem tcp_slow_start_after_idle tcp_congestion_control; do
        echo "orch: network_tuning: $name is $(cat /proc/sys/net/ipv4/$name)"
    done
} >> setup.log 2>&1 9>&-
"""


def tuning_block(tuning: str) -> str:
    """The lines of run.sh that widen the kernel's TCP windows (`network_tuning: wan`); "" for default."""
    if tuning != "wan":
        return ""
    settings = "\n".join(f"    tune {shlex.quote(f'{name}={value}')}" for name, value in SYSCTLS)
    return _TUNING % {"settings": settings}


def run_script(
    request: LaunchRequest,
    wheel: str,
    requirements_sha256: str,
    *,
    idle_minutes: int = 5,
    python: str = "3.11",
) -> str:
    """run.sh of one VM; nothing in it is secret."""
    from cloud.sky.vm.secrets import KEY_VARIABLE

    accelerator = request.offer.accelerator.partition(":")[0]
    # A peer that emulates a model does not build it.
    packages = (*_PACKAGES, "transformers") if request.config.get("emulated") is False else _PACKAGES
    return _SCRIPT % {
        "setup_s": _SETUP_S,
        "environment_s": _ENVIRONMENT_S,
        "install_s": _INSTALL_S,
        "address_s": _ADDRESS_S,
        "address_commands": " ||\n    ".join(v.address_command for v in RENTED.values() if v.address_command),
        "kill_s": _KILL_S,
        "tuning": tuning_block(request.network_tuning),
        "life_s": round(request.max_life_s or 0),
        "grace_s": 60 * (idle_minutes + 5),
        "gpu": "no" if accelerator in ("", "CPU") else shlex.quote(accelerator),
        "wheel": shlex.quote(wheel),
        "requirements": requirements_sha256,
        "packages": " ".join(packages),
        "python": python,
        "key_variable": KEY_VARIABLE,
        "vm": shlex.quote(request.vm),
        "wait_s": _WAIT_S if f"env:{PEERS_VARIABLE}" in request.config.get("initial_peers", ()) else 0,
        "peers_variable": PEERS_VARIABLE,
        "clock_variable": CLOCK_VARIABLE,
        "program": shlex.quote(request.program),
    }


def peek_command(address: str, peers: str = "", now_s: float | None = None, neighbours: str = "") -> str:
    """What is asked over ssh: leaves the VM its address and the time, prints job.json, status.json and its clock.

    One line each, the first two of JSON; a blank line stands for one that is not there (yet). `peers`: whom it is to
    join, "" when that is not known yet; the first word counts. `now_s`: unix time by the run's clock.
    `neighbours`: whom it reaches at internal addresses (`cloud.sky.state.neighbours`); the last word counts.
    """
    # A link is made whole or not at all, and never over another.
    tell = f"echo {shlex.quote(peers)} > peers.$$; ln peers.$$ peers 2>/dev/null; rm -f peers.$$; "
    near = f"echo {shlex.quote(neighbours)} > {NEIGHBOURS}.$$; mv -f {NEIGHBOURS}.$$ {NEIGHBOURS}; "
    clock = (
        ""
        if now_s is None
        else f"read -r up _ < /proc/uptime; echo {now_s:.3f} $up > clock.$$; mv -f clock.$$ clock; "
    )
    return (
        f"cd ~/{FOLDER} 2>/dev/null || exit 0; [ -s address ] || echo {shlex.quote(address)} > address; "
        f"{clock}{near if neighbours else ''}{tell if peers else ''}"
        "for f in job.json status.json; do tr -d '\\n' < $f 2>/dev/null; echo; done; date +%s.%N"
    )


def stop_command() -> str:
    """Ask the program to leave and wait for its end, at most 12 s."""
    return (
        f"cd ~/{FOLDER} 2>/dev/null || exit 0; [ -e pid ] || exit 0; p=$(cat pid); kill -TERM $p 2>/dev/null; "
        "for n in $(seq 48); do kill -0 $p 2>/dev/null || exit 0; sleep 0.25; done; exit 0"
    )
