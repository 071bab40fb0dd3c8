"""The plan of a study: totals, unknown values, obstacles."""

from __future__ import annotations

from typing import Any

from orchestrator.cli.render.study_plan import plan_document, study_plan_lines, study_question


def a_plan(name: str, **changes: Any) -> dict[str, Any]:
    """A minimal plan of a run."""
    plan = {
        "experiment": name, "raw_duration_s": 100.0, "duration_s": 3600.0, "vm_usd": "2.50", "usd_per_h": "2.50",
        "peers": [{}, {}], "budget": {"egress_usd_per_h": "4"}, "scales": {"bytes": 100.0, "samples": 8.0}, "notes": [],
        "launchable": True, "obstacles": [],
        "scale_reasons": ["time_scale 1: the only one proved"],
    }  # fmt: skip
    return plan | changes


def test_totals_are_the_sums_of_the_runs():
    document = plan_document("s", "sky", {"one": a_plan("one"), "two": a_plan("two")}, 2)
    lines = study_plan_lines(document)
    assert lines[2] == "  one  2 VMs  $2.50/h, about 1 h, VMs $2.50, traffic at most $4.00"
    assert lines[-1].endswith("VMs $5.00, traffic at most $8.00")
    assert (
        study_question(document)
        == "Rent up to 2 VMs at a time, $5.00 of VMs and at most $8.00 of traffic in all?"
    )


def test_unknown_cost_makes_the_totals_unknown():
    unknown = a_plan("two", duration_s=None, raw_duration_s=None, vm_usd=None)
    document = plan_document("s", "sky", {"one": a_plan("one"), "two": unknown}, 2)
    reported = "\n".join([*study_plan_lines(document), study_question(document)])
    assert "VMs unknown, traffic: unknown" in reported
    assert "VMs at an unknown price and traffic at an unknown price in all?" in reported
    assert "most unknown" not in reported
    assert "about unknown" not in reported


def test_obstacles_and_notes_name_each_run_once():
    why = {"code": "no_scales", "text": "no step time is known"}
    refused = {"launchable": False, "obstacles": [why]}
    plans = {name: a_plan(name, notes=["traffic is old"], **refused) for name in ("a-1", "a-2")}
    plans["a-1"]["scale_reasons"] = [
        "parts 48: fewer",
        "warning: bytes_scale 4 does not keep this host under half busy",
    ]
    notes = {
        on: [line for line in study_plan_lines(plan_document("s", on, plans, 2)) if "note:" in line]
        for on in ("sky", "local")
    }
    assert notes["sky"] == notes["local"][:1]  # rented VMs are not this host
    assert notes["local"] == [
        "  note: every run: traffic is old",
        "  note: a-1: bytes_scale 4 does not keep this host under half busy",
    ]
    document = plan_document("s", "sky", plans, 2)
    assert document["launchable"] is False
    assert study_plan_lines(document)[:3] == [
        "s cannot be launched as it is: 2 of 2 runs have obstacles",
        "  - every run: no step time is known",
        "s: 2 runs one after the other, on VMs rented through SkyPilot",
    ]
    plans["a-2"] = a_plan("a-2")
    assert study_plan_lines(plan_document("s", "sky", plans, 2))[:2] == [
        "s cannot be launched as it is: 1 of 2 runs have obstacles",
        "  - a-1: no step time is known",
    ]
    assert study_plan_lines(plan_document("s", "sky", {"a-2": a_plan("a-2")}, 2))[0] == "s can be launched"


def test_warnings_name_each_run_once_and_come_before_the_notes():
    plans = {name: a_plan(name, warnings=["an old price"], notes=["a note"]) for name in ("a-1", "a-2")}
    plans["a-2"]["warnings"] = ["an old price", "another"]
    assert study_plan_lines(plan_document("s", "sky", plans, 0))[-3:] == [
        "  warning: every run: an old price",
        "  warning: a-2: another",
        "  note: every run: a note",
    ]
