"""Sent bytes of a peer, and warnings if they are unknown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.peer.reporting import traffic as module
from experiments.peer.reporting.socket_counters import InetDiagError
from experiments.peer.reporting.traffic import Traffic, open_meter
from metrics.records import EgressRecord
from orchestrator.controller.finish import read_egress

VM = "r-a-0"


class Meter:
    """Sent 30 bytes to one address; its counts may become unreadable."""

    def __init__(self) -> None:
        self.warnings, self.closed, self.readable = ["egress: a reading failed"], False, True

    def snapshot(self) -> dict[str, int]:
        if not self.readable:
            raise InetDiagError("no counters")
        return {"10.0.0.2": 30}

    def close(self) -> None:
        self.closed = True


def traffic_of(folder: Path, meter: Meter | None, warnings: dict[str, str]) -> Traffic:
    model = SimpleNamespace(by_peer=lambda: {"QmB": 20})
    return Traffic(VM, folder / "egress.csv", cast(Any, meter), cast(Any, model), warnings.__setitem__)


def test_bytes_outside_epochs_and_meter_warnings_are_written_at_the_end(tmp_path: Path) -> None:
    meter, warnings = Meter(), dict[str, str]()
    traffic = traffic_of(tmp_path, meter, warnings)
    assert traffic.model_bytes() == {}  # the peer's address is not known yet
    traffic.locate(["/ip4/1.2.3.4/tcp/1/p2p/QmB"], {"QmB": "10.0.0.2"})
    assert traffic.model_bytes() == {"10.0.0.2": 20}  # the internal address counts
    traffic.published(1, [EgressRecord(VM, 1, "10.0.0.2", "comm", 2.0, 25, 18)])
    traffic.close()
    rows = read_egress(tmp_path / "egress.csv", VM)
    assert [(r.epoch, r.phase, r.bytes, r.model_bytes) for r in rows] == [(1, "leaving", 5, 2)]
    assert meter.closed
    assert warnings == {"egress: a reading failed": "egress: a reading failed"}


def test_unreadable_meter_is_only_a_warning(tmp_path: Path) -> None:
    meter, warnings = Meter(), dict[str, str]()
    traffic = traffic_of(tmp_path, meter, warnings)
    meter.readable = False
    traffic.write_final()
    assert warnings == {"final egress": "egress after the last epoch is unknown: no counters"}


def test_without_counters_egress_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise InetDiagError("not permitted")

    warnings = dict[str, str]()
    monkeypatch.setattr(module, "EgressMeter", refuse)
    assert open_meter(warnings.__setitem__) is None
    assert warnings == {"egress": "egress is unknown: not permitted"}
    traffic = traffic_of(tmp_path, None, warnings)
    assert (traffic.sent(), traffic.model_bytes()) == ({}, None)
    traffic.close()
    assert list(read_egress(tmp_path / "egress.csv", VM)) == []
