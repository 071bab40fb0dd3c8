"""`orch pipeline profile --offload`: what is refused; `orch pipeline plan` with what it wrote."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import made_up_offload
import numpy as np
import pytest
from made_up_offload import between

from analysis.pipeline.offload.offload_profile import OffloadProfile
from orchestrator.cli.app import run
from orchestrator.pipeline.offload.find_profile import write_offload_profile


def orch(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(["pipeline", *arguments])
    done = capsys.readouterr()
    assert "Traceback" not in done.err
    return code, done.out, " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batches", "20"), "--batches: it belongs to --offload; add --offload, or leave it out"),
        (("--pass", "1"), "--pass: it belongs to --offload"),
        (("--sps-per-peer", "5"), "--sps-per-peer: it belongs to --offload"),
        (("--offload", "--splits", "1"), "--splits: strategies are not measured with --offload"),
        (("--offload", "--cache", "disk"), "--cache: strategies are not measured with --offload"),
        (("--offload", "--to", "s3://b/c"), "--to: strategies are not measured with --offload"),
        (("--offload", "--windows", "9"), "--windows: strategies are not measured with --offload"),
        (("--offload", "--streams", "1,2"), "--streams 1,2: with --offload name one number"),
        (("--offload", "--workers", "0"), "--workers 0: write whole numbers from 1"),
        (("--offload", "--codecs", "jpeg"), "--codecs jpeg: not a codec; choose from none, gzip"),
        (("--offload", "--sps-per-peer", "0"), "--sps-per-peer 0: a rate is above 0"),
        (("--offload", "--sps-per-peer", "nan"), "--sps-per-peer nan: a rate is above 0"),
        (("--offload", "--batches", "1"), "'--batches': Input should be greater than or equal to 2"),
        (("--offload", "--samples", "0"), "at least one sample must be measured"),
    ],
)
def test_what_is_refused_before_anything_starts(capsys, arguments: tuple[str, ...], words: str):
    code, out, err = orch(capsys, "profile", "digits", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "making" not in err


@pytest.fixture
def made(tmp_path: Path) -> OffloadProfile:
    """An I/O-bound profile below tmp_path / p: 10 samples/s fetched, 100 preprocessed, 50 trained."""
    found = made_up_offload.profile()
    write_offload_profile(tmp_path / "p", found)
    return found


def plan(capsys, folder: Path, *arguments: str) -> dict:
    code, out, err = orch(
        capsys, "plan", "--profile", str(folder), "--storage-cores", "1", *arguments, "-o", "json"
    )
    assert code == 0, err
    return json.loads(out)


def test_the_profile_gives_what_is_left_out(capsys, tmp_path: Path, made: OffloadProfile):
    found = plan(capsys, tmp_path / "p")
    assert found["machines"] == {
        "trainer_s": pytest.approx(3 / 50),
        "bandwidth_mbps": pytest.approx(8 * 890_000 / 3 * 10 / 1e6),
        "client_cores": 4,
        "storage_cores": 1,
        "server_speed": {"decode": 1.0, "crop": 1.0},
    }
    none, best = found["policies"]["none"], found["policies"]["best"]
    assert none["t_net_s"] == pytest.approx(3 / 10)
    assert none["t_cc_s"] == pytest.approx(0.05 / 4)
    assert best["verdict"] == "pays"
    # with WebP, as measured for each sample
    assert best["bytes"] == 60_000 + 90_000 + 75_264
    assert found["stage_1"]["io_bound"] == "io_bound"
    assert plan(capsys, tmp_path / "p" / "offload.json") == found
    assert run(["pipeline", "plan", "--help"]) == 0
    said = capsys.readouterr().out.partition("JSON without an experiment")[2]
    keys = {*found, *found["stage_1"], *found["machines"], *none}
    assert keys <= set(re.findall(r'"([a-z0-9_:]+)"', said))


def test_what_is_not_io_bound_is_offloaded_for_dollars_only(capsys, tmp_path: Path, made: OffloadProfile):
    folder, sentence = tmp_path / "p", "bytes cost money even when nobody waits"
    found = plan(capsys, folder, "--trainer-s", "3")  # one sample a second
    assert found["stage_1"]["io_bound"] == "trainer_slowest"
    assert sentence in found["stage_1"]["text"]
    best = found["policies"]["best"]
    assert (best["verdict"], best["offloaded"]) == ("off", 0)
    code, out, _ = orch(capsys, "plan", "--profile", str(folder), "--storage-cores", "1", "--trainer-s", "3")
    assert code == 0
    assert sentence in out
    in_usd = ("--objective", "usd", "--usd-per-h", "0,0", "--usd-per-gb", "10,0,10")
    best = plan(capsys, folder, "--trainer-s", "3", *in_usd)["policies"]["best"]
    assert (best["verdict"], best["offloaded"]) == ("pays", 2)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (("--bandwidth-mbps", "1000"), "trainer_slowest"),
        (("--client-cores", "0.05"), "preprocessing_slowest"),
        (("--bandwidth-mbps", "1000", "--trainer-s", "0"), "preprocessing_slowest"),
        (("--trainer-s", "0"), "io_bound"),
    ],
)
def test_options_change_what_stage_1_says(
    capsys, tmp_path: Path, made: OffloadProfile, options: tuple[str, ...], verdict: str
):
    assert plan(capsys, tmp_path / "p", *options)["stage_1"]["io_bound"] == verdict


def test_fetching_that_is_slowest_within_the_intervals_is_not_enough(capsys, tmp_path: Path):
    stage = replace(made_up_offload.stage(), preprocess_sps=between(10.5, 13))
    write_offload_profile(tmp_path / "p", made_up_offload.profile(stage))
    found = plan(capsys, tmp_path / "p")
    assert found["stage_1"]["io_bound"] == "overlap"
    assert found["policies"]["best"]["verdict"] == "off"


def test_an_unknown_trainer_must_be_given(capsys, tmp_path: Path):
    stage = replace(made_up_offload.stage(), trainer_sps=None)
    write_offload_profile(tmp_path / "p", made_up_offload.profile(stage))
    code, _, err = orch(capsys, "plan", "--profile", str(tmp_path / "p"), "--storage-cores", "1")
    assert code == 2
    assert (
        "--trainer-s: the profile does not know the trainer's rate; add --trainer-s, or profile with" in err
    )
    assert plan(capsys, tmp_path / "p", "--trainer-s", "0.06")["stage_1"]["trainer_sps"]["value"] == 50


def test_the_servers_own_profile_gives_its_speed(capsys, tmp_path: Path, made: OffloadProfile):
    assert made.samples.op_s is not None
    server = replace(made, samples=replace(made.samples, op_s=made.samples.op_s * np.array([2.0, 0.5])))
    write_offload_profile(tmp_path / "server", server)
    found = plan(capsys, tmp_path / "p", "--server-profile", str(tmp_path / "server"))
    assert found["machines"]["server_speed"] == pytest.approx({"decode": 2.0, "crop": 0.5})
    assert found["policies"]["all"]["storage_cpu_s"] == pytest.approx(2 * 0.044 + 0.5 * 0.006)
    others = replace(server, head=replace(server.head, fingerprint="e" * 64))
    write_offload_profile(tmp_path / "other", others)
    strangers = replace(server, samples=replace(server.samples, keys=["x", "y", "z"]))
    write_offload_profile(tmp_path / "strangers", strangers)
    for name, more, words in (
        ("other", (), "it is of another pipeline; measure one of the same samples on the server"),
        ("strangers", (), "the profiles have no sample in common; measure one"),
        ("p/samples.csv", (), "not the folder of a profile"),
        ("none.json", (), "none.json: cannot read the profile (No such file or directory); give the folder"),
        ("server", ("--server-speed", "2"), "--server-speed: --server-profile has the speed"),
    ):
        code, out, err = orch(
            capsys,
            *("plan", "--profile", str(tmp_path / "p"), "--storage-cores", "1"),
            *("--server-profile", str(tmp_path / name), *more),
        )
        assert (code, out) == (2, "")
        assert words in err


def test_bad_files_are_a_sentence(capsys, tmp_path: Path, made: OffloadProfile):
    folder = tmp_path / "p"
    samples = (folder / "samples.csv").read_text()

    def refused(*more: str) -> str:
        code, out, err = orch(capsys, "plan", "--profile", str(folder), "--storage-cores", "1", *more)
        assert (code, out) == (2, "")
        return err

    assert "has the times of its samples; leave the option out" in refused("--times", "x.csv")
    assert "--trainer-s -1 is not 0, or from 0.001" in refused("--trainer-s", "-1")
    (folder / "samples.csv").write_text(samples[:-30])
    assert "not a two-stage profile (line 4: " in refused()
    (folder / "samples.csv").write_text(samples.replace("0.016", "nan"))
    assert "not a two-stage profile (line 2: decode_s is 'nan', not a number from 0 to 1e+15)" in refused()
    (folder / "samples.csv").unlink()
    assert "samples.csv: cannot read the profile (No such file or directory)" in refused()
    (folder / "samples.csv").write_text(samples)
    (folder / "offload.json").write_text('{"schema_version": 9}')
    assert "not a two-stage profile (schema_version is 9, not 1)" in refused()


def test_a_key_may_hold_any_bytes(tmp_path: Path, capsys):
    found = made_up_offload.profile()
    odd = replace(found, samples=replace(found.samples, keys=["a\udcff,\r\n", 'b"', "ü"]))
    write_offload_profile(tmp_path / "p", odd)
    assert plan(capsys, tmp_path / "p")["samples"] == 3
