"""Runs made up for the tests of the numbers: plain records, no process, no clock."""

from __future__ import annotations

from random import Random

from metrics.records import EgressRecord, EpochRecord, VmRecord


def epoch(
    vm: str = "a", number: int = 1, began_s: float = 0.0, calc_s: float = 10.0, comm_s: float = 2.0, **other
) -> EpochRecord:
    """One peer's epoch; `other` overrides any field."""
    values = {
        "vm": vm,
        "epoch": number,
        "began_s": began_s,
        "ended_s": began_s + calc_s + comm_s,
        "steps": 4,
        "samples": 128,
        "load_s": 0.0,
        "move_s": 0.0,
        "forward_s": calc_s / 3,
        "backward_s": calc_s * 2 / 3,
        "optimizer_local_s": 0.0,
        "optimizer_sync_s": comm_s,
        "other_s": 0.0,
        "calc_s": calc_s,
        "comm_s": comm_s,
        "loss": 2.0,
        "group_size": 2,
        "dropped": "",
        "ran": "digits",
    }
    return EpochRecord(**{**values, **other})


def vm(name: str = "a", **other) -> VmRecord:
    """One VM of Iowa at the study's price."""
    from decimal import Decimal

    values = {
        "vm": name,
        "slot": name,
        "generation": 0,
        "location": "gcp/us-central1/us-central1-a",
        "instance": "n1-standard-8",
        "accelerator": "T4:1",
        "use_spot": True,
        "usd_per_h": Decimal("0.18"),
        "price_source": "study",
        "address": "10.0.0.1",
        "requested_s": 0.0,
        "ready_s": 5.0,
        "ended_s": None,
        "end_cause": "",
    }
    return VmRecord(**{**values, **other})


def egress(vm: str, number: int, address: str, phase: str, seconds: float, count: int) -> EgressRecord:
    """One egress record."""
    return EgressRecord(vm, number, address, phase, seconds, count)


def random_run(seed: int) -> list[EpochRecord]:
    """Up to five peers, up to six epochs, peers that come late or vanish, shuffled."""
    random = Random(seed)
    records: list[EpochRecord] = []
    for n in range(random.randint(1, 5)):
        at = random.uniform(0, 3)
        first = random.randint(1, 2)
        for number in range(first, random.randint(first, 6) + 1):
            calc, comm = random.uniform(1, 30), random.uniform(0.1, 8)
            records.append(
                epoch(
                    f"p{n}",
                    number,
                    at,
                    calc,
                    comm,
                    samples=random.randint(1, 900),
                    loss=random.uniform(0, 3),
                )
            )
            at += calc + comm
    random.shuffle(records)
    return records
