"""The monitor against a real DHT: an honest peer, a forger without validators, a stop that works."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from experiments.wire.record_keys import generate_identity, generate_record_key
from metrics.records import EgressRecord, EpochRecord, IngressRecord

pytestmark = pytest.mark.processes

_FORK = multiprocessing.get_context("fork")
_RUN_KEY = "run"
_VM = "run-a-0"


def _record(epoch, vm=_VM):
    now = time.time()
    return (
        EpochRecord(
            vm, epoch, now - 4, now, 4, 64, 0.5, 0.0, 1.5, 1.0, 0.0, 1.0, 0.0, 3.0, 1.0, 2.3, 2, "", "x"
        ),
        [EgressRecord(vm, epoch, "10.0.0.2", "comm", 1.0, 1000 + epoch, 900)],
        IngressRecord(vm, epoch, 10, 0),
    )


def _temporary(folder):
    """Multiprocessing's sockets go there too: the tests have looked the folder up."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def _dht(folder, **more):
    _temporary(folder)
    from experiments.wire.hivemind.sockets import short_socket_folder

    short_socket_folder()
    import hivemind

    return hivemind.DHT(
        start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], auto_nat=False, nat_port_map=False, use_relay=False,
        startup_timeout=60, **more,
    )  # fmt: skip


def _honest(folder, pipe):
    """Publishes epochs on command; reports progress as Hivemind's tracker does."""
    from hivemind.utils.crypto import RSAPrivateKey

    from experiments.peer.reporting.publish import Publisher, use_record_key

    RSAPrivateKey._process_wide_key = None  # this is a fork: an earlier test of this process may have set one
    key = use_record_key(folder / "record.key")
    dht = _dht(folder, identity_path=str(folder / "identity.key"))
    publisher = Publisher(dht, _RUN_KEY, _VM, "a", 0, folder / "record.key")
    pipe.send(str(dht.get_visible_maddrs()[0]))
    while (epoch := pipe.recv()) is not None:
        publisher.epoch(*_record(epoch))
        publisher.evaluation(epoch, {"accuracy": 0.5, "loss": 2.0, "wer": 0.25}, 100)
        from hivemind.dht.crypto import RSASignatureValidator
        from hivemind.utils import get_dht_time

        progress = {"peer_id": dht.peer_id.to_bytes(), "epoch": epoch, "samples_accumulated": 32}
        progress |= {"samples_per_second": 16.0, "time": get_dht_time(), "client_mode": False}
        reported = dht.store(
            f"{_RUN_KEY}_progress",
            subkey=RSASignatureValidator(key).local_public_key,
            value=progress,
            expiration_time=get_dht_time() + 60,
        )
        pipe.send((publisher.flush(20), reported))
    publisher.close()
    dht.shutdown()


def _forger(folder, pipe):
    """A node without validators: writes under the honest peer's subkey, later expiration, no signature."""
    from hivemind.utils import get_dht_time

    from experiments.wire.dht_records import EpochReport, encode_epochs, subkey_of

    maddr, public_key = pipe.recv()
    dht = _dht(folder, initial_peers=[maddr])
    epoch, egress, ingress = _record(9)
    value = encode_epochs("a", 0, 2**50, [EpochReport(epoch, tuple(egress), ingress)])
    for subkey in (subkey_of(_VM, public_key), subkey_of("run-nobody-0", generate_record_key()[1]), b"junk"):
        dht.store(f"{_RUN_KEY}_orch_epochs", value, get_dht_time() + 320, subkey=subkey)
    pipe.send(str(dht.get_visible_maddrs()[0]))
    pipe.recv()
    dht.shutdown()


def _monitor(folder):
    _temporary(folder)
    from experiments.monitor.main import main

    os._exit(main(str(folder / "config.json")))


def _lines(folder, kind=None):
    path = folder / "monitor.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if kind in (None, row["kind"])]


def _wait(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def _descendants(pid):
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def test_monitor_accepts_valid_records_counts_forged_ones_and_stops(tmp_path, monkeypatch):
    import hivemind  # noqa: F401 - once, for all forks

    folders = {name: tmp_path / name for name in ("a", "f", "m")}
    for folder in folders.values():
        folder.mkdir()
    pem, public_key = generate_record_key()
    identity, peer_id = generate_identity()
    (folders["a"] / "record.key").write_bytes(pem)
    (folders["a"] / "identity.key").write_bytes(identity)
    config = {"run_key": _RUN_KEY, "listen_address": "", "target_batch_size": 128, "period_s": 0.5}
    (folders["m"] / "config.json").write_text(json.dumps(config | {"dht_timeout_s": 5.0}))

    (to_honest, honest_end), (to_forger, forger_end) = _FORK.Pipe(), _FORK.Pipe()
    honest = _FORK.Process(target=_honest, args=(folders["a"], honest_end))
    forger = _FORK.Process(target=_forger, args=(folders["f"], forger_end))
    monitor = _FORK.Process(target=_monitor, args=(folders["m"],))
    processes = [honest, forger, monitor]
    try:
        for process in processes:
            process.start()
        assert to_honest.poll(60)
        maddr = to_honest.recv()
        assert maddr.endswith(peer_id)  # the identity made without Hivemind is the one Hivemind uses
        to_forger.send((maddr, public_key))
        to_honest.send(1)
        assert to_honest.poll(40)
        assert to_honest.recv() == (True, True)
        assert to_forger.poll(60)
        forger_maddr = to_forger.recv()
        stranger = {
            "vm": "run-f-0",
            "slot": "f",
            "generation": 0,
            "record_public_key": generate_record_key()[1],
        }
        mine = {"vm": _VM, "slot": "a", "generation": 0, "record_public_key": public_key, "peer_id": peer_id}
        roster = {"peers": [mine | {"maddr": maddr}, stranger | {"maddr": forger_maddr}]}
        (folders["m"] / "roster.json").write_text(json.dumps(roster))
        _wait(lambda: len(_lines(folders["m"], "rejected")) >= 3 and _lines(folders["m"], "epoch"))
        to_honest.send(2)
        assert to_honest.poll(40)
        assert to_honest.recv() == (True, True)
        _wait(lambda: len(_lines(folders["m"], "epoch")) == 2)

        family = _descendants(monitor.pid)
        assert family  # p2pd
        began = time.monotonic()
        os.kill(monitor.pid, signal.SIGTERM)
        monitor.join(10)
        assert time.monotonic() - began < 5
        assert monitor.exitcode == 0
        assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    finally:
        to_honest.send(None)
        to_forger.send(None)
        for process in processes:
            process.join(8)
            if process.is_alive():
                children = _descendants(process.pid)
                for pid in (process.pid, *children):
                    os.kill(pid, signal.SIGKILL)
                process.join()

    epochs = _lines(folders["m"], "epoch")
    assert [row["epoch"]["epoch"] for row in epochs] == [1, 2]
    assert epochs[1]["egress"][0] | {} == {
        "vm": _VM, "epoch": 2, "dst_address": "10.0.0.2", "phase": "comm", "seconds": 1.0, "bytes": 1002,
        "model_bytes": 900,
    }  # fmt: skip
    assert [row["epoch"] for row in _lines(folders["m"], "evaluation")] == [1, 2]
    assert {row["reason"] for row in _lines(folders["m"], "rejected")} == {"signature", "roster", "subkey"}
    assert all(row["count"] == 1 for row in _lines(folders["m"], "rejected"))
    swarm = [row for row in _lines(folders["m"], "progress") if row["vm"] == ""][-1]
    assert (swarm["epoch"], swarm["samples"], swarm["sps"], swarm["peers"]) == (2, 32, 16.0, 1)
    assert 0 <= swarm["eta_s"] <= 6
    assert _lines(folders["m"], "swarm")[-1]["alive"] == [_VM]
    status = json.loads((folders["m"] / "status.json").read_text())
    assert (status["phase"], status["error"]) == ("done", "")
    assert not list(folders["m"].glob("*.sock"))
