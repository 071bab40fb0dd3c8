"""The script that runs on a VM: prepare the environment, unseal the secrets and run the program. Text only."""

from __future__ import annotations

import shlex

from cloud.networks.tuning import SYSCTLS
from cloud.provider import LaunchRequest
from cloud.vendors import RENTABLE

FOLDER = "orch-vm"  # in the VM user's home
MORE_REQUIREMENTS = "more_requirements.txt"  # file on the VM with the packages that the user's task needs
NEIGHBOURS = "neighbours"  # file on the VM with the internal addresses of its neighbours
PEERS_VARIABLE = "ORCH_INITIAL_PEERS"  # peers that the program joins, if its config asks for it
CLOCK_VARIABLE = "ORCH_CLOCK"  # the controller's time and this machine's monotonic time then (experiments.peer.swarm.clock)
_WAIT_S = 900  # for the peers to join, in case the first peer fails on the way
# Limits of each step, enforced by the VM itself: it has no lease before its program runs.
_SETUP_S = 1200  # the experiment's own `setup`
_ENVIRONMENT_S = 300  # creating the Python environment
_INSTALL_S = 1200  # installing the peer's requirements into it
_ADDRESS_S = 300  # waiting for its public address, before the cloud's metadata service is queried
_KILL_S = 30  # from SIGTERM to SIGKILL of a step that exceeds its limit
_SLACK_S = 60.0  # for steps without a limit of their own, and until the state is observed

SETUP_WITHIN_S = _SETUP_S + _KILL_S + _SLACK_S
"""Longest time that a working VM reports phase "setup"."""
INSTALL_WITHIN_S = _ENVIRONMENT_S + _INSTALL_S + 2 * _KILL_S + _ADDRESS_S + _SLACK_S
"""Longest time that a working VM reports phase "installing"."""

# Compares the packages of an environment with requirements.txt, for the packages named; prints differences, exit 1 if any.
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
# Runs on a VM as the job of its SkyPilot cluster, in ~/orch-vm. Reports its progress in job.json.
set -u
cd "$HOME/orch-vm" || exit 1
umask 077
report() {  # phase, exit code or null, error, "hopeless" if every other VM of the run would fail in the same way
    "$PYTHON3" -c 'import json, os, sys, time
phase, code, error, hopeless = sys.argv[1:5]
with open("job.json.new", "w") as file:
    json.dump({"phase": phase, "exit_code": None if code == "null" else int(code), "error": error, "at_s": time.time(),
               "hopeless": hopeless == "hopeless"}, file)
os.replace("job.json.new", "job.json")' "$1" "$2" "$3" "${4:-}"
}
fail() { report ended 1 "$1" "${2:-}"; echo "orch: $1" >&2; exit 1; }  # error, "hopeless" as above
PYTHON3=$(command -v python3) || { echo "orch: the image has no python3" >&2; exit 1; }

# If SkyPilot is asked twice (its server died in between), there are two jobs: the second waits for the first.
exec 9> .lock
flock 9
if [ -e exit_code ]; then exit "$(cat exit_code)"; fi

# This VM ends whatever happens to the controller: its program is ended, then SkyPilot's autodown finds the VM idle, and if
# that fails too the machine is switched off.
LIFE=%(life_s)d
if [ "$LIFE" -gt 0 ] && [ ! -e life.pid ]; then
    setsid nohup bash -c 'echo $$ > life.pid; sleep '"$LIFE"'
        touch life_over; [ -e pid ] && kill -TERM "$(cat pid)"; sleep 20; [ -e pid ] && kill -KILL -- "-$(cat pid)"
        sleep %(grace_s)d; sudo -n shutdown -h now || sudo -n poweroff -f' 9>&- < /dev/null > life.log 2>&1 &
fi

report preparing null ""
GPU=%(gpu)s
if [ "$GPU" != no ]; then
    found=$(nvidia-smi -L 2>&1) || fail "no working GPU driver on this image (nvidia-smi: $(echo "$found" | head -1))"
fi
limited() { timeout -k %(kill_s)d "$@"; }  # seconds, command
report setup null ""
%(tuning)slimited %(setup_s)d bash setup.sh >> setup.log 2>&1 9>&- ||
    fail "the experiment's setup failed with exit code $?: $(tail -1 setup.log)"

report installing null ""
WHEEL=%(wheel)s WANTED=%(requirements)s
ready() {  # whether the environment in $1 has what the wheel needs
    [ -x "$1/bin/python" ] || return 1
    [ "$(cat "$1/requirements.sha256" 2>/dev/null)" = "$WANTED" ] && return 0
    why=$("$1/bin/python" check_versions.py requirements.txt %(packages)s 2>&1)
}
why=""
UV=$(command -v uv || ls "$HOME/.local/bin/uv" 2>/dev/null)
index=""; [ "$GPU" != no ] || index="--extra-index-url https://download.pytorch.org/whl/cpu"
[ "$GPU" != no ] && backend=auto || backend=cpu
SECONDS=0
if %(image)sready /opt/orch/env; then ENV=/opt/orch/env
elif ready "$HOME/orch-env"; then ENV=$HOME/orch-env
else
    [ -z "$why" ] || echo "orch: the environment of the image does not fit: $why"
    ENV=$HOME/orch-env
    if [ -n "$UV" ]; then
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
%(more)sLIB=$HOME/orch-vm/lib-$(basename "$WHEEL" .whl)
[ -d "$LIB" ] || { "$ENV/bin/python" -m zipfile -e "$WHEEL" "$LIB.new" && mv "$LIB.new" "$LIB"; } ||
    fail "$WHEEL cannot be unpacked"
export PYTHONPATH=$LIB PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

if [ -e sealed ]; then
    "$ENV/bin/python" -m cloud.sky.vm.secrets sealed config.json || fail "the sealed files of this VM cannot be opened"
    rm -f sealed
fi
unset %(key_variable)s

# The address at which other peers reach this VM: the controller writes it here as soon as it is known; if it does not, the
# cloud's metadata service is queried.
for n in $(seq $((2 * %(address_s)d))); do [ -s address ] && break; sleep 0.5; done
ORCH_PUBLIC_ADDRESS=$(cat address 2>/dev/null || true)
[ -n "$ORCH_PUBLIC_ADDRESS" ] || ORCH_PUBLIC_ADDRESS=$(
    %(address_commands)s)
[ -n "$ORCH_PUBLIC_ADDRESS" ] || fail "this VM cannot determine its public address"
export ORCH_PUBLIC_ADDRESS ORCH_VM=%(vm)s

# The peers to join, written in the same way: addresses of peers that are up now, or "alone" to start the swarm.
WAIT=%(wait_s)d
if [ "$WAIT" -gt 0 ]; then
    report waiting null ""
    for n in $(seq $((2 * WAIT))); do { [ -s peers ] || [ -e life_over ]; } && break; sleep 0.5; done
    [ -s peers ] || [ -e life_over ] || fail "this VM was not told which peers to join within $WAIT s"
    export %(peers_variable)s=$(cat peers 2>/dev/null)
fi
# SkyPilot limits jobs to one thread, but the program may use all cores.
cores=$(grep -c ^processor /proc/cpuinfo)
export OMP_NUM_THREADS=$cores MKL_NUM_THREADS=$cores

# The time as the controller last reported it.
export %(clock_variable)s="$(cat clock 2>/dev/null)"
[ ! -e life_over ] || fail "this VM has reached its maximum lifetime"
report running null ""
"$ENV/bin/python" -c 'import importlib, os, sys
os.setsid()
with open("pid", "w") as file:
    file.write(str(os.getpid()))
if os.path.exists("life_over"):  # touched before there was a pid to signal
    sys.exit(1)
module, _, name = sys.argv[1].partition(":")
result = getattr(importlib.import_module(module), name)("config.json")
sys.stdout.flush()
sys.exit(result if isinstance(result, int) else 0)' %(program)s > console.log 2>&1 < /dev/null 9>&- &
child=$!
wait $child
code=$?
rm -f pid
echo $code > exit_code
if [ -e life_over ]; then report ended $code "it reached its maximum lifetime"
elif [ $code -gt 128 ]; then report ended $code "its program was killed by signal $((code - 128))"
else report ended $code "its program ended with exit code $code"; fi
exit $code
"""

# The peer's own versions are constraints: what would replace one fails. An environment's own pip comes first, because uv
# does not see packages that a .pth file adds to it. If the wheels are enough, no index is contacted: a VM may reach none.
# The time is what the steps before have left; `timeout 0` would mean no limit.
_MORE = r"""if [ -x "$ENV/bin/pip" ]; then
    more() { limited "$(left)" "$ENV/bin/pip" install --no-input --disable-pip-version-check --progress-bar off "$@"; }
elif [ -n "$UV" ]; then
    index="--torch-backend $backend"
    more() { VIRTUAL_ENV=$ENV limited "$(left)" "$UV" pip install -q "$@"; }
else fail "the task's requirements could not be installed: the image has neither pip nor uv; use another 'image_id'" hopeless
fi
left() { n=$((%(seconds)d - SECONDS)); echo $((n > 1 ? n : 1)); }
all_more() { more "$@" -r %(file)s -c requirements.txt > more.log 2>&1 9>&-; }
{ [ -d wheels ] && all_more --no-index; } || all_more $index || {
    code=$?
    cat more.log >> setup.log
    # On another VM, or later, only what failed for lack of time or of a connection may succeed.
    hopeless=hopeless
    if [ $code -ge 124 ] || grep -qiE %(passing)s more.log; then hopeless=; fi
    # The first of pip's errors, with what it says of conflicts, or all that uv says.
    said=$(awk '/^ERROR: / && !found++ {sub(/^ERROR: /, ""); sub(/\.$/, ""); printf "%%s", $0}
        /^The conflict is caused by:/ {rows = 1; next}
        rows && /^ / {sub(/^ +/, ""); printf "%%s%%s", (rows++ > 1 ? ", " : ": "), $0; next}
        {rows = 0}' more.log)
    [ -n "$said" ] || said=$(tr -s ' \n' ' ' < more.log | sed 's/^ //; s/ $//')
    fail "the task's requirements could not be installed together with the peer's: ${said:0:500}; correct 'requirements' in \
the experiment file and launch it again (the VM's setup.log has the whole output)" $hopeless
}
"""

# What pip and uv write if an index did not answer (an extended regular expression).
_PASSING = "Retrying [(]|connection (broken|error)|time(d |)out|error sending request|dns error|name resolution|HTTP status server"

# If a VM rejects a setting, training continues: setup.log shows which one, and the resulting kernel settings.
_TUNING = """\
# network_tuning: wan
tune() { sudo -n sysctl -qw "$1" || echo "orch: network_tuning: this VM rejects $1"; }
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
    """The part of run.sh that enlarges the kernel's TCP windows (`network_tuning: wan`); "" for default."""
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
    """Return run.sh of one VM; it contains no secrets."""
    from cloud.sky.vm.secrets import KEY_VARIABLE

    accelerator = request.offer.accelerator.partition(":")[0]
    # A peer that emulates a model does not need to build it.
    packages = (*_PACKAGES, "transformers") if request.config.get("emulated") is False else _PACKAGES
    return _SCRIPT % {
        "setup_s": _SETUP_S,
        "environment_s": _ENVIRONMENT_S,
        "install_s": _INSTALL_S,
        "address_s": _ADDRESS_S,
        "address_commands": " ||\n    ".join(
            v.address_command for v in RENTABLE.values() if v.address_command
        ),
        "kill_s": _KILL_S,
        # Packages are added to the image's environment only if this user may write there.
        "image": "[ -w /opt/orch/env/bin ] && " if request.requirements else "",
        "more": _MORE
        % {
            "seconds": _ENVIRONMENT_S + _INSTALL_S,
            "file": MORE_REQUIREMENTS,
            "passing": shlex.quote(_PASSING),
        }
        if request.requirements
        else "",
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
    """Return the command run over ssh: it leaves the VM its address and the time, and prints its reports and its clock.

    Prints job.json, status.json and the clock on one line each; a blank line stands for a missing file. `peers`: the peers
    to join, "" if not known yet; only the first value is kept. `now_s`: unix time by the run's clock. `neighbours`: VMs
    that it reaches at internal addresses (`cloud.sky.state.neighbours`); the last value is kept.
    """
    # ln is atomic and never overwrites an existing file.
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
    """Return the command that asks the program to exit and waits for its end, at most 12 s."""
    return (
        f"cd ~/{FOLDER} 2>/dev/null || exit 0; [ -e pid ] || exit 0; p=$(cat pid); kill -TERM $p 2>/dev/null; "
        "for n in $(seq 48); do kill -0 $p 2>/dev/null || exit 0; sleep 0.25; done; exit 0"
    )
