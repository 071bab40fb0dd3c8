"""`orch pipeline plan` without an experiment: policies of offloading by a profile alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.cli.app import run

HEAD = "index;raw;decoding;original_shape;RandomResizedCrop;\n"
MACHINES = ("--bandwidth-mbps", "8", "--client-cores", "4", "--storage-cores", "1", "--trainer-s", "0.01")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Sizes and times of three samples, as options."""
    sizes, times = tmp_path / "sizes.csv", tmp_path / "times.csv"
    rows = ((0, 300_033, 0.016), (1, 90_033, 0.008), (2, 500_033, 0.02))
    sizes.write_text(HEAD + "".join(f"{k};{raw};2400033;(1, 1);150561;\n" for k, raw, _ in rows))
    times.write_text(HEAD + "".join(f"{k};0;{s};(1, 1);0.002;\n" for k, _, s in rows))
    return "--profile", str(sizes), "--times", str(times)


def plan(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(["pipeline", "plan", *arguments])
    done = capsys.readouterr()
    assert "Traceback" not in done.err
    return code, done.out, " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


def test_the_json_of_a_profile_alone(own_home: Path, capsys, files: tuple[str, ...]):
    code, out, _ = plan(capsys, *files, *MACHINES, "-o", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["samples"], found["shrinking"], found["least_bytes"]) == (3, 2, 2 * 150_528 + 90_000)
    assert found["shrinking_by_op"] == {"decoding": 0, "RandomResizedCrop": 2}
    assert list(found["policies"]) == ["none", "all", "prefix:2", "fastflow", "greedy", "best"]
    none, greedy = found["policies"]["none"], found["policies"]["greedy"]
    assert none["epoch_s"] == none["t_net_s"] == pytest.approx(0.89)
    assert none["t_cc_s"] == pytest.approx(0.05 / 4)
    assert (greedy["offloaded"], greedy["bytes"], greedy["verdict"]) == (2, 2 * 150_528 + 90_000, "pays")
    assert greedy["storage_cpu_s"] == pytest.approx(0.04)
    assert greedy["usd_per_1m_samples"] is None
    assert found["policies"]["best"]["bound_s"] == pytest.approx(found["policies"]["best"]["epoch_s"])
    code, out, _ = plan(capsys, *files, *MACHINES, "--server-speed", "2", "-o", "json")
    assert json.loads(out)["policies"]["all"]["storage_cpu_s"] == pytest.approx(2 * 0.05)
    assert run(["pipeline", "plan", "--help"]) == 0
    said = capsys.readouterr().out.partition("JSON without an experiment")[2]
    assert {*found, *none, *found["policies"]} <= set(re.findall(r'"([a-z0-9_:]+)"', said))


def test_the_table_and_dollars(own_home: Path, capsys, files: tuple[str, ...]):
    prices = ("--objective", "usd", "--usd-per-h", "3600,360", "--usd-per-gb", "10,0,10", "--prefix", "1")
    code, out, _ = plan(capsys, *files, *MACHINES, *prices, "--codec", "webp,2,0.4,3,1")
    assert code == 0
    assert out.startswith("2 of 3 samples (66.7%) are smaller after an operation than they are stored.\n")
    assert [line.split()[0] for line in out.splitlines()[3:9]] == [
        "none",
        "all",
        "prefix:1",
        "fastflow",
        "greedy",
        "best",
    ]
    code, out, _ = plan(capsys, *files, *MACHINES, *prices, "-o", "json")
    none = json.loads(out)["policies"]["none"]
    assert json.loads(out)["policies"]["best"]["usd_per_1m_samples"] <= none["usd_per_1m_samples"]
    assert none["usd_per_1m_samples"] == pytest.approx((0.89 * 1 + 890_000 * 10 / 1e9) / 3 * 1e6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--bandwidth-mbps", "0"), "--bandwidth-mbps 0 is not from 0.001 to 1e+09"),
        (("--client-cores", "nan"), "--client-cores nan is not from 0.001 to 1e+09"),
        (("--storage-cores", "-1"), "--storage-cores -1 is not 0, or from 0.001 to 1e+09"),
        (("--trainer-s", "inf"), "--trainer-s inf is not 0, or from 0.001 to 1e+09"),
        (("--server-speed", "0"), "--server-speed 0 is not from 0.001 to 1e+09"),
        (("--prefix", "3"), "the pipeline has 2 operations, so prefix:3 does not exist"),
        (("--objective", "usd"), "dollars cannot be minimised without prices"),
        (("--codec", "webp,2"), "--codec 'webp,2' is not NAME,OPS,RATIO,WRITE_MS,READ_MS"),
        (("--codec", "webp,3,0.5,1,1"), "the codec webp follows 3 operations"),
        (("--usd-per-gb", "1,2", "--usd-per-h", "1,0"), "--usd-per-gb '1,2' is not DIRECT,IN,OUT in dollars"),
        (
            ("--usd-per-gb", "1,2,3", "--usd-per-h", "-1,0"),
            "--usd-per-h '-1,0' is not RENTED,SERVER in dollars",
        ),
        (("--usd-per-gb", "1,2,3"), "--usd-per-gb: dollars need --usd-per-h too"),
        (("--codec", "none,2,0.5,1,1"), "must have different names, none of them none"),
        (("--codec", "a,2,0.5,1,1", "--codec", "a,1,0.5,1,1"), "must have different names"),
        (("--prices", "nosuch"), "--prices: it belongs to the plan of an experiment"),
        (("--passes", "0"), "--passes '0' is not one number from 1 to 1,000,000"),
        (("--passes", "1,30"), "--passes '1,30' is not one number from 1 to 1,000,000"),
        (("--passes", "nan"), "--passes 'nan' is not one number"),
        (("--cache-gb", "-1"), "--cache-gb '-1' is not CLIENT or CLIENT,SERVER in GB of 0 or more"),
        (("--cache-gb", "1,nan"), "--cache-gb '1,nan' is not CLIENT or CLIENT,SERVER"),
        (("--cache-gb", "1,2,3"), "--cache-gb '1,2,3' is not CLIENT or CLIENT,SERVER"),
        (("--cache-gb", "inf"), "--cache-gb 'inf' is not CLIENT or CLIENT,SERVER"),
        (("--random-from", "0"), "--random-from 0 is not 1 or more"),
        (("--random-from", "4"), "the first random operation 4 is not from 1 to 3"),
        (("--bandwidth-mbps", "8,9"), "--bandwidth-mbps '8,9' has 2 numbers for 1 profile; give one number"),
        (("--bandwidth-mbps", "fast"), "--bandwidth-mbps 'fast' is not a number"),
        (("--weights", "2"), "--weights: it belongs to jobs that share a server"),
        (("--least-gain", "2"), "--least-gain: it belongs to jobs that share a server"),
        (("--times", "twice.csv"), "--times: one profile has one file of times"),
        (("--cores", "2"), "--storage-cores: it belongs to the plan of one profile"),
        (("--bandwidth-mbps", "1e-20"), "--bandwidth-mbps 1e-20 is not from 0.001"),
    ],
)
def test_what_is_refused(
    own_home: Path, capsys, files: tuple[str, ...], changed: tuple[str, ...], words: str
):
    code, out, err = plan(capsys, *files, *MACHINES, *changed)
    assert (code, out) == (2, "")
    assert words in err


def test_passes_and_caches(own_home: Path, capsys, files: tuple[str, ...]):
    """The client has room for one sample of 500 kB, and is sent 390 kB in later passes."""
    caches = ("--passes", "4", "--cache-gb", "0.0005,0.0003")
    code, out, _ = plan(capsys, *files, *MACHINES, *caches, "-o", "json")
    assert code == 0
    found = json.loads(out)["policies"]
    none, greedy, best = found["none"], found["greedy"], found["best"]
    assert (none["client_cached"], none["server_cached"]) == (2, 0)  # in order: 300 kB and 90 kB
    assert (none["first_pass_s"], none["later_pass_s"]) == pytest.approx((0.89, 0.5))
    assert none["epoch_s"] == pytest.approx((0.89 + 3 * 0.5) / 4)
    assert none["bytes"] == pytest.approx((890_000 + 3 * 500_000) / 4)
    assert (greedy["offloaded"], greedy["client_cached"], greedy["server_cached"]) == (2, 1, 1)
    assert best["epoch_s"] < min(none["epoch_s"], greedy["epoch_s"])
    assert best["bound_s"] <= best["epoch_s"] * (1 + 1e-6)
    assert "in the first pass the network takes longest" in best["why"]
    _, out, _ = plan(capsys, *files, *MACHINES, *caches)
    assert "CLIENT CACHED  SERVER CACHED" in out
    for unchanged in (("--passes", "9"), ("--cache-gb", "5,5"), ("--random-from", "3")):
        _, plain, _ = plan(capsys, *files, *MACHINES, "-o", "json")
        assert plan(capsys, *files, *MACHINES, *unchanged, "-o", "json")[1] == plain
    code, _, err = plan(capsys, *files[:2], *MACHINES, *caches)
    assert (code, "passes with caches need the operations' times" in err) == (2, True)


def report(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(["pipeline", "report", *arguments])
    done = capsys.readouterr()
    assert "Traceback" not in done.err
    return code, done.out, " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


def test_a_report_on_a_profile_alone(own_home: Path, capsys, files: tuple[str, ...], tmp_path: Path):
    prices = ("--usd-per-h", "1,0.2", "--usd-per-gb", "10,0,10")
    code, out, _ = report(
        capsys, *files, *MACHINES, *prices, "--passes", "3", "--cache-gb", "0.0005", "-o", "json"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["target"], found["kind"], found["missing"], found["best"]) == ("sizes", "profile", [], [])
    assert found["parts"] == {"trace": None, "map": None, "profile": files[1]}
    page = Path(found["report"])
    assert page.parent.parent == own_home / "pipeline-reports"
    for name in ("shrinking", "benefit", "policies", "cores", "bill"):
        assert {path.suffix for path in page.parent.glob(f"{name}.*")} == {".csv", ".png", ".svg"}
    text = page.read_text()
    assert (
        "8 Mb/s to a client of 4 cores, 1 core next to the storage, a trainer that needs 0.01 s for a pass"
        in text
    )
    assert "Means of 3 passes with caches of 0.0005 GB (client) and 0 GB (server)." in text
    code, out, _ = report(capsys, *files[:2], *MACHINES, "--out", str(tmp_path / "page"), "-o", "json")
    assert code == 0
    assert "need the operations' times; give them with --times" in json.loads(out)["missing"][0]
    code, out, _ = report(capsys, *files, *MACHINES, "--out", str(tmp_path / "page"))
    assert (code, out) == (0, f"{tmp_path / 'page' / 'report.html'}\n")
    assert "The bill needs prices" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name an experiment, a pipeline or a run, or a profile by sample with --profile FILE"),
        (("--profile", "/proc/none", *MACHINES), "/proc/none: cannot be read"),
        (("--profile", "/proc/none"), "--bandwidth-mbps: a plan without an experiment needs it"),
        (("--profile", "/proc/none", *MACHINES, "--passes", "1,30"), "--passes '1,30' is not one number"),
        (("--profile", "/proc/none", *MACHINES, "--cache-gb", "-1"), "--cache-gb '-1' is not CLIENT"),
        (
            ("--profile", "/proc/none", *MACHINES, "--samples", "3"),
            "--samples: it belongs to the report of a target",
        ),
        (
            ("--profile", "/proc/none", *MACHINES, "--trace", "x"),
            "--trace: it belongs to the report of a target",
        ),
        (("imagenet", "--cache-gb", "3"), "--cache-gb: it belongs to the report of a profile alone"),
        (("imagenet", "--objective", "usd"), "--objective: it belongs to the report of a profile alone"),
    ],
)
def test_what_a_report_is_refused(own_home: Path, capsys, arguments: tuple[str, ...], words: str):
    code, out, err = report(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.fixture
def trainer_bound(tmp_path: Path) -> tuple[str, ...]:
    """A job whose trainer takes longest, as options."""
    sizes, times = tmp_path / "other.csv", tmp_path / "other-times.csv"
    sizes.write_text(f"{HEAD}0;1033;2400033;(1, 1);150561;\n")
    times.write_text(f"{HEAD}0;0;0.01;(1, 1);0.002;\n")
    return "--profile", str(sizes), "--times", str(times)


SHARED = ("--bandwidth-mbps", "8", "--client-cores", "4,2", "--trainer-s", "0.01,5", "--cores", "3")


def test_jobs_on_one_server(own_home: Path, capsys, files: tuple[str, ...], trainer_bound: tuple[str, ...]):
    code, out, _ = plan(capsys, *files, *trainer_bound, *SHARED, "--weights", "2,1", "-o", "json")
    assert code == 0
    found = json.loads(out)
    first, second = found["jobs"]
    # one core is enough: 0.04 CPU seconds are less than what the network takes
    assert (found["cores"], found["cores_left"], first["cores"], second["cores"]) == (3, 2, 1, 0)
    assert (first["policy"], first["offloaded"], first["weight"]) == ("best", 2, 2.0)
    assert (first["none_s"], first["epoch_s"]) == pytest.approx((0.89, 0.391056))
    assert first["pass_s_by_cores"] == pytest.approx([0.89, *[0.391056] * 3])
    assert (second["policy"], second["offloaded"], second["epoch_s"]) == ("none", 0, 5.0)
    assert found["weighted_s"] == pytest.approx(2 * 0.391056 + 5)
    assert found["weighted_none_s"] == pytest.approx(2 * 0.89 + 5)
    assert first["why"] == ("1 core makes its pass 0.3911 s instead of 0.89 s; further ones save nothing")
    assert second["why"].startswith(
        "nothing is offloaded: the trainer takes longest, 5 s, and cores next to the storage make"
    )
    assert second["why"].endswith("that shorter by less than 0.1 %")
    code, out, _ = plan(capsys, *files, *trainer_bound, *SHARED)
    assert (code, [line.split()[-1] for line in out.splitlines()[1:3]]) == (0, ["2", "0"])
    assert out.splitlines()[-1].endswith("if nothing is offloaded; cores left over: 2.")
    assert run(["pipeline", "plan", "--help"]) == 0
    said = capsys.readouterr().out.partition("JSON of jobs")[2]
    assert {*found, *first} <= set(re.findall(r'"([a-z0-9_:]+)"', said))


def test_a_job_that_gains_less_gets_no_core(own_home: Path, capsys, files: tuple[str, ...]):
    machines = ("--bandwidth-mbps", "8", "--client-cores", "4", "--trainer-s", "0.01", "--cores", "1")
    code, out, _ = plan(capsys, *files, *files, *machines, "--weights", "1,3", "-o", "json")
    first, second = json.loads(out)["jobs"]
    assert (code, first["cores"], second["cores"]) == (0, 0, 1)
    assert "a core saves 0.4989 s, times its weight of 1, and the other jobs gain more by it" in first["why"]
    assert second["why"].endswith("it has all of them")
    code, out, _ = plan(capsys, *files, *files, *machines, "--least-gain", "60", "-o", "json")
    assert (code, [job["policy"] for job in json.loads(out)["jobs"]]) == (0, ["none", "none"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--cores", "0"), "--cores 0 is not from 1 to 256"),
        (("--cores", "-1"), "--cores -1 is not from 1 to 256"),
        (("--weights", "1,2,3"), "--weights '1,2,3' has 3 numbers for 2 profiles; give one number for all"),
        (("--weights", "1,0"), "--weights 0 is not from 0.001"),
        (("--weights", "1,nan"), "--weights nan is not from 0.001"),
        (("--weights", "1,-2"), "--weights -2 is not from 0.001"),
        (("--trainer-s", "1,2,3"), "--trainer-s '1,2,3' has 3 numbers for 2 profiles"),
        (("--least-gain", "100"), "--least-gain 100 is not from 0 to less than 100 per cent"),
        (("--least-gain", "nan"), "--least-gain nan is not 0, or from 0.001"),
        (("--server-profile", "here"), "--server-profile: it belongs to the plan of one profile"),
        (("--storage-cores", "2"), "--storage-cores: it belongs to the plan of one profile"),
        (("--objective", "usd"), "--objective: it belongs to the plan of one profile"),
        (("--passes", "2"), "--passes: it belongs to the plan of one profile"),
        (("--cache-gb", "2"), "--cache-gb: it belongs to the plan of one profile"),
        (("--usd-per-h", "1,0"), "--usd-per-h: it belongs to the plan of one profile"),
        (
            ("--times", "third.csv"),
            "--times: 2 profiles need as many files of times, in their order, and there are 3",
        ),
        (
            ("--profile", "third.csv"),
            "--times: 3 profiles need as many files of times, in their order, and there are 2",
        ),
    ],
)
def test_what_jobs_are_refused(
    own_home: Path,
    capsys,
    files: tuple[str, ...],
    trainer_bound: tuple[str, ...],
    changed: tuple[str, ...],
    words: str,
):
    code, out, err = plan(capsys, *files, *trainer_bound, *SHARED, *changed)
    assert (code, out) == (2, "")
    assert words in err


def test_several_profiles_need_cores(own_home: Path, capsys, files: tuple[str, ...]):
    code, _, err = plan(
        capsys, *files, *files, "--bandwidth-mbps", "8", "--client-cores", "4", "--trainer-s", "1"
    )
    assert (code, "--cores: 2 profiles share a server; add --cores N" in err) == (2, True)
    code, _, err = plan(capsys, "geo-b2", "--profile", "a", "--profile", "b")
    assert (code, "--profile: the plan of an experiment has one profile" in err) == (2, True)


def test_an_experiment_or_a_profile_alone(own_home: Path, capsys, files: tuple[str, ...]):
    assert "--bandwidth-mbps: a plan without an experiment needs it" in plan(capsys, *files)[2]
    assert "name an experiment, or a profile by sample with --profile FILE" in plan(capsys)[2]
    assert "--objective: it belongs to a plan without" in plan(capsys, "geo-b2", "--objective", "usd")[2]
    code, _, err = plan(capsys, "geo-b2", *files)
    assert (code, "--times: it belongs to a plan without an experiment" in err) == (2, True)
    assert "/proc/none: cannot be read" in plan(capsys, "--profile", "/proc/none", *MACHINES)[2]
