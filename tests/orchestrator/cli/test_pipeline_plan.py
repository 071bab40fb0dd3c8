"""`orch pipeline plan`: what is printed, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_profile import measurement, profile

from analysis.pipeline.profile_file import to_json
from analysis.pipeline.profile_records import Strategy
from experiments.pipeline.load import load_pipeline
from metrics.stats import Estimate
from orchestrator.cli.app import run

PHOTOS = ("pipeline", "plan", "geo-b2", "--pipeline", "imagenet", "--samples", "1281167")


def store(folder: Path, name: str = "one", **changed: object) -> Path:
    """Store a profile in the home's folder of profiles."""
    path = folder / "profiles" / name / "profile.json"
    path.parent.mkdir(parents=True)
    path.write_text(to_json(replace(profile(), **changed)))
    return path


def document(capsys, *arguments: str) -> dict:
    assert run([*PHOTOS, *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments: str) -> str:
    """The sentence on stderr of a command that ends with 2."""
    assert run(["pipeline", "plan", *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert "Traceback" not in done.err
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


def test_photos_at_the_prices_of_b2(own_home: Path, capsys):
    store(own_home)
    assert run([*PHOTOS]) == 0
    out = capsys.readouterr().out.splitlines()
    columns = "PASSES STRATEGY SPS BOUND USD PER 1M ONE OFF USD BREAK EVEN PASSES VERDICT SCORE"
    assert out[0].split() == columns.split()
    (once,) = [line for line in out if line.startswith("1 pass: ")]
    (often,) = [line for line in out if line.startswith("30 passes: ")]
    assert once == (
        "1 pass: nothing pays: keep 0-none-s1-w1t-none (nothing stored, 1 stream, 1 thread, no cache), $4.427 per 1M "
        "samples; the trainer limits it to 71.11 samples/s."
    )
    assert often == (
        "30 passes: 0-none-s1-w1t-disk is best (nothing stored, 1 stream, 1 thread, cache on disk), $1.517 per 1M samples, "
        "$2.91 (66%) less than 0-none-s1-w1t-none: bytes from the store cost $2.91 less; the trainer limits it to 71.11 "
        "samples/s (compared: 71.11, the trainer); it is cheaper from pass 2 on; each peer's cache needs 193 GB "
        "(data.cache_gb is 1)."
    )


def test_baseline_by_hand(own_home: Path, capsys):
    """Two T4 at $0.18 and 35.56 samples/s each, and 301 kB a sample at $0.01 a GB; keeping the set adds $0.01."""
    store(own_home)
    found = document(capsys, "--passes", "1", "--sps-per-peer", "36")
    row = found["options"][0]
    assert found["peers"][0]["trainer_sps"] == 36
    assert row["sps"] == {"value": 72, "low": 72, "high": 72}
    assert row["parts_usd_per_1m_samples"]["vm"] == pytest.approx(2 * 0.18 / 3600 / 72 * 1e6, rel=1e-4)
    assert row["parts_usd_per_1m_samples"]["data"] == pytest.approx(3.01)
    storage = 301_000 * 1_281_167 / 1e9 * 0.005 / 730 * (1_281_167 / 72 / 3600) / 1.281167
    assert row["parts_usd_per_1m_samples"]["storage"] == pytest.approx(storage, rel=1e-4)
    assert row["verdict"] == "baseline"
    assert row["unknown"] == []


def test_rate_and_dollars_of_a_run_that_was_measured(own_home: Path, capsys):
    """geo-b2 as it was run, with 124 kB a sample: VMs and bytes from the store. The run also averaged, for 4 % of its time."""
    golden = json.loads((Path(__file__).parents[2] / "golden" / "runs_cost.json").read_text())
    steady = golden["geo-b2-20261124-18a0"]["runs"][0]["measured"]["steady"]
    hours_per_1m = steady["vm_hours"] / steady["samples"] * 1e6
    store(own_home, measurements=(measurement(Strategy(0), 124_000, 500),))
    (row,) = document(capsys, "--passes", "1")["options"]
    assert row["sps"]["value"] == pytest.approx(2e6 / 3600 / hours_per_1m, rel=0.05)
    for part in ("vm", "data"):
        measured = steady["usd_per_vm_h_by_kind"][part] * hours_per_1m
        assert row["parts_usd_per_1m_samples"][part] == pytest.approx(measured, rel=0.05)


def test_s3_is_unknown_in_the_paper_s_book_and_dearer_in_the_list(own_home: Path, capsys):
    store(own_home)
    s3 = ("--set", "data.location=aws/us-west-2")
    unknown = document(capsys, *s3)
    assert {row["verdict"] for row in unknown["options"]} == {"baseline", "unknown", "too_large"}
    assert all(row["usd_per_1m_samples"] is None for row in unknown["options"])
    assert "no price for reading from aws/us-west-2" in unknown["best"][0]["text"]
    assert "--prices" in unknown["best"][0]["text"]
    known = document(capsys, *s3, "--prices", "list-2026-11")
    b2 = document(capsys, "--prices", "list-2026-11")
    assert known["price_book"] == "list-2026-11.csv"
    data = [found["options"][0]["parts_usd_per_1m_samples"]["data"] for found in (known, b2)]
    assert 7 < data[0] / data[1] <= 9  # $0.09 a GB, less beyond 10 TB, and $0.01
    assert [best["saves"] and best["saves"]["part"] for best in known["best"]] == [None, "data"]


def test_json_has_what_the_help_names(own_home: Path, capsys):
    store(own_home)
    found = document(capsys, "--passes", "30,1,30")
    assert [best["passes"] for best in found["best"]] == [30, 1]
    assert run(["pipeline", "plan", "--help"]) == 0
    help_text = capsys.readouterr().out.partition("JSON without an experiment")[0]
    named = set(re.findall(r'"([a-z0-9_]+)"', help_text))
    keys: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            keys.update(value)
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(found)
    assert keys == named


def test_rented_vms_are_priced_by_the_newest_book(own_home: Path, capsys):
    store(own_home)
    found = document(capsys, "--on", "sky", "--set", "data.location=gcp/us-central1")
    assert found["price_book"] == "list-2026-11.csv"
    assert all(row["usd"] is not None for row in found["options"])


def test_the_work_before_training_on_this_machine(own_home: Path, capsys):
    store(own_home)
    here, vm = (
        next(
            row
            for row in document(capsys, "--offline", where, "--passes", "1")["options"]
            if row["strategy"] == "1-webp-s1-w1t-none"
        )
        for where in ("here", "vm")
    )
    assert here["one_off_usd"] == pytest.approx(301_000 * 1_281_167 / 1e9 * 0.01)
    assert vm["one_off_usd"] > here["one_off_usd"]


def test_the_latest_profile_of_the_pipeline(own_home: Path, capsys):
    store(own_home, "a", measured_at="2026-11-28T07:00:00Z", machine="newer")
    store(own_home, "b", measured_at="2026-11-27T07:00:00Z", machine="older")
    store(own_home, "c", measured_at="2026-11-29T07:00:00Z", machine="another", target="x", pipeline="x")
    broken = own_home / "profiles" / "d"
    broken.mkdir()
    (broken / "profile.json").write_text("{")
    assert run([*PHOTOS, "-o", "json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["profile"]["machine"] == "newer"
    assert "left out" in done.err
    assert str(broken) in done.err


def test_the_experiment_s_own_profile_needs_no_option(own_home: Path, capsys):
    store(own_home, target="geo-b2", pipeline="digits", fingerprint=load_pipeline("digits").fingerprint())
    assert run(["pipeline", "plan", "geo-b2"]) == 0
    capsys.readouterr()
    store(
        own_home,
        "later",
        target="geo-b2",
        pipeline="digits",
        fingerprint="1" * 64,
        measured_at="2026-11-29T00:00:00Z",
    )
    why = refusal(capsys, "geo-b2")
    assert "fingerprint 111111111111 differs from that of geo-b2" in why
    assert run(["pipeline", "plan", "geo-b2", "--any-profile"]) == 0


def test_without_a_profile(own_home: Path, capsys):
    assert "orch pipeline profile geo-b2" in refusal(capsys, "geo-b2")
    assert "orch pipeline profile imagenet`" in refusal(capsys, "geo-b2", "--pipeline", "imagenet")


def test_a_profile_of_another_pipeline(own_home: Path, capsys):
    path = store(own_home)
    why = refusal(capsys, "geo-b2", "--profile", str(path))
    assert "pipeline imagenet (decode, crop, flip, to_tensor, normalise)" in why
    assert "not of digits, with which geo-b2 reads" in why
    assert "--pipeline imagenet" in why
    why = refusal(capsys, "geo-b2", "--profile", str(path), "--pipeline", "text")
    assert "not of text" in why
    for accepted in (("--any-profile",), ("--pipeline", "imagenet")):
        assert run(["pipeline", "plan", "geo-b2", "--profile", str(path.parent), *accepted]) == 0


def test_a_folder_is_its_profile_and_other_files_are_refused(own_home: Path, capsys, tmp_path: Path):
    assert "cannot read the profile" in refusal(capsys, "geo-b2", "--profile", str(tmp_path / "none.json"))
    for content in (b"{", b"[]", b"{}", b"\xff\xfe", b"1", b"null"):
        bad = tmp_path / "bad.json"
        bad.write_bytes(content)
        assert f"{bad}: not " in refusal(capsys, "geo-b2", "--profile", str(bad))
    empty = tmp_path / "empty.json"
    empty.write_text(to_json(replace(profile(), measurements=())))
    assert "has no strategy" in refusal(capsys, "geo-b2", "--profile", str(empty), "--any-profile")
    none = tmp_path / "none-read.json"
    none.write_text(to_json(profile(*(replace(m, samples=0) for m in profile().measurements))))
    assert "has no samples" in refusal(capsys, "geo-b2", "--profile", str(none), "--any-profile")
    still = tmp_path / "still.json"
    still.write_text(
        to_json(profile(replace(profile().measurements[0], delivered_sps=Estimate(0.0, 0.0, 0.0, 5))))
    )
    why = refusal(capsys, "geo-b2", "--profile", str(still), "--any-profile")
    assert "0-none-s1-w1t-none delivered 0 samples/s" in why
    stored = tmp_path / "stored.json"
    stored.write_text(to_json(profile(*profile().measurements[5:])))
    why = refusal(capsys, "geo-b2", "--profile", str(stored), "--any-profile")
    assert "no strategy with split 0, no codec and no cache to compare with" in why


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--passes", "0"), "--passes '0'"),
        (("--passes", "1,,3"), "--passes '1,,3'"),
        (("--passes", "1.5"), "--passes '1.5'"),
        (("--passes", "1e9"), "--passes '1e9'"),
        (("--sps-per-peer", "0"), "--sps-per-peer 0 is not above 0"),
        (("--sps-per-peer", "nan"), "--sps-per-peer nan is not above 0"),
        (("--weights", "1,2"), "not three weights"),
        (("--weights", "0,0,0"), "one of them above 0"),
        (("--samples", "0"), "greater than or equal to 1"),
        (("--prices", "nobook"), "no such price book"),
    ],
)
def test_bad_options(own_home: Path, capsys, arguments, part):
    store(own_home)
    assert part in refusal(capsys, "geo-b2", "--pipeline", "imagenet", *arguments)


def test_a_pipeline_is_no_experiment(own_home: Path, capsys):
    store(own_home)
    assert "a plan needs an experiment's peers" in refusal(capsys, "imagenet")


def test_an_unknown_rate_asks_for_it(own_home: Path, capsys):
    store(own_home)
    host = ("--set", "emulation.accelerators=host")
    why = refusal(capsys, *PHOTOS[2:], *host)
    assert "the trainer's rate cannot be predicted" in why
    assert "--sps-per-peer" in why
    assert run([*PHOTOS, *host, "--sps-per-peer", "10"]) == 0
