"""`orch advise`: the table, JSON, files ready to launch, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.planning.prediction import predict
from cloud.prices.book import load as load_book
from experiments.parse import find
from experiments.parse.load import load
from orchestrator.cli.app import run

pytestmark = pytest.mark.usefixtures("nothing_of_the_users", "own_home")

_FEW = ("geo-c8-nlp", "--peers", "2..4", "--max-per-place", "1")


def advise(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert run(["advise", *arguments]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(advise(capsys, *arguments, "-o", "json", code=code)[0])


def test_the_table_has_the_proposals_the_reasons_and_what_stands_against_them(
    capsys: pytest.CaptureFixture[str],
):
    out, err = advise(capsys, *_FEW)
    assert err == ""
    found = as_json(capsys, *_FEW)
    first = found["proposals"][0]
    assert f"{first['sps']['value']:.4g} [{first['sps']['low']:.4g}, {first['sps']['high']:.4g}]" in out
    assert f"1: {first['why']}" in out
    assert "When not to do it" in out
    assert (
        "8xA10 of the paper: 1060 samples/s, $4.80/h, $1.258 per 10^6 samples: faster and cheaper than all of these"
        in out
    )
    assert "source: Erben et al. 2023 (arXiv 2306.03163), Figure 15" in out
    search = found["search"]
    assert (
        f"{search['requested']} combinations at the prices of study-2023-04.csv: {search['evaluated']} computed"
        in out
    )


def test_json_is_of_the_predictor(capsys: pytest.CaptureFixture[str]):
    found = as_json(capsys, *_FEW)
    assert found["schema_version"] == 1
    assert found["samples"] == 3 * 32768
    assert found["search"]["complete"] is True
    assert found["unmet"] is None
    for proposal in found["proposals"]:
        assert {each["count"] for each in proposal["peers"]} == {1}
    widest = next(p for p in found["proposals"] if len(p["peers"]) == 4)
    same = load("geo-c8-nlp", [f"peers.{name}.count=1" for name in ("us", "eu", "asia", "aus")])
    p = predict(same, load_book("study-2023-04"))
    assert p.sps is not None
    assert widest["sps"] == {"value": p.sps.value, "low": p.sps.low, "high": p.sps.high}


def test_written_proposals_validate_and_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    folder = tmp_path / "proposals"
    found = as_json(capsys, *_FEW, "--write", str(folder))
    files = sorted(folder.iterdir())
    assert [str(path) for path in files] == sorted(p["file"] for p in found["proposals"])
    assert len(files) >= 2
    for proposal in found["proposals"]:
        assert run(["validate", proposal["file"], "--on", "local"]) == 0
        capsys.readouterr()
        assert run(["plan", proposal["file"], "-o", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["experiment"] == proposal["name"]
        assert sorted(peer["location"] for peer in plan["peers"]) == sorted(
            each["location"] for each in proposal["peers"]
        )
    _, err = advise(capsys, *_FEW, "--write", str(folder), code=2)
    assert f"{files[0]} exists already; choose another folder with --write" in err


def test_options_are_written_too(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    found = as_json(capsys, *_FEW, "--options", "compression", "--write", str(tmp_path))
    best = found["proposals"][0]
    assert best["option"] == "swarm.compression=uniform8bit"
    assert load(best["file"]).swarm.compression == "uniform8bit"


def test_all_options_are_candidates(capsys: pytest.CaptureFixture[str]):
    arguments = ("geo-c8-nlp", "--peers", "4,8", "--max-per-place", "2", "--options", "any")
    found = as_json(capsys, *arguments)
    assert found["left_out"] == []
    options = {each["option"] for each in found["proposals"]}
    assert "swarm.overlap=delayed" in options
    assert found["search"]["complete"]


def test_an_experiment_that_is_not_predicted_says_what_to_measure(capsys: pytest.CaptureFixture[str]):
    _, err = advise(capsys, "geo-c8", "--peers", "4", "--set", "swarm.batch_size=16", code=2)
    assert "put batch_size, step_s and plain_step_s into experiments/accelerators.csv" in err


def test_goals_that_cannot_be_met(capsys: pytest.CaptureFixture[str]):
    arguments = ("geo-c8", "--peers", "2..8", "--max-usd-per-h", "0.5", "--min-sps", "200")
    out, _ = advise(capsys, *arguments, code=3)
    assert out.startswith(
        "No combination meets --max-usd-per-h 0.5 and --min-sps 200 together; the nearest is "
    )
    found = as_json(capsys, *arguments, code=3)
    assert found["proposals"] == []
    assert found["unmet"]["goals"] == ["max_usd_per_h", "min_sps"]
    assert found["unmet"]["nearest"]["sps"]["value"] < 200
    one, _ = advise(capsys, "geo-c8", "--peers", "2..8", "--min-sps", "600", "--max-usd-per-h", "5", code=3)
    assert "No combination meets --min-sps 600; the nearest is" in one
    assert "8xA10 of the paper, which meets the goals" in one


def test_a_search_that_was_cut_says_so(capsys: pytest.CaptureFixture[str]):
    kinds = ("--places", "gcp/us-central1,gcp/europe-west1,gcp/asia-east1,gcp/australia-southeast1")
    arguments = ("geo-c8", *kinds, "--max-per-place", "4", "--limit", "100")
    out, _ = advise(capsys, *arguments)
    found = as_json(capsys, *arguments)
    search = found["search"]
    assert search["complete"] is False
    assert search["not_searched"]
    total = sum(search["not_searched"].values()) + search["evaluated"] + search["ruled_out"] + search["unfit"]
    assert total == search["combinations"]
    assert "Not searched, because of --limit: " in out


def test_all_regions_of_a_cloud(capsys: pytest.CaptureFixture[str]):
    found = as_json(capsys, "geo-c8", "--clouds", "gcp", "--peers", "2..16", "--on", "sky", "--rows", "2")
    search = found["search"]
    assert search["requested"] > 10**6
    assert search["complete"] is True
    codes = {each["code"] for each in found["left_out"]}
    assert codes == {"no_place", "no_vm_price", "no_path", "same_figures"}
    assert found["price_book"] == "list-2026-11.csv"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("geo-c8", "--min-sps", "0"), "--min-sps 0: give a number above 0"),
        (("geo-c8", "--max-usd-per-h", "-1"), "--max-usd-per-h -1: give a number above 0"),
        (("geo-c8", "--max-usd-per-1m", "nan"), "--max-usd-per-1m nan: give a number above 0"),
        (("geo-c8", "--accelerators", "H9"), "unknown accelerator 'H9'"),
        (("geo-c8", "--accelerators", "H100"), "no step time of ConvNextLarge on H100:1: add a row to"),
        (("geo-c8", "--places", "gcp/nowhere"), "'nowhere' is not a region of gcp"),
        (("geo-c8", "--places", "gcp/southamerica-east1"), "has no measurement at 'gcp/southamerica-east1"),
        (("geo-c8", "--places", "gcp/southamerica-east1"), "`orch net check --places gcp/southamerica-east1"),
        (("geo-c8", "--clouds", "gpc"), "'gpc' is not a cloud that rents VMs"),
        (("geo-c8", "--peers", "1..4"), "a swarm has 2 to 64 peers"),
        (("geo-c8", "--peers", "9..2"), "a swarm has 2 to 64 peers"),
        (("geo-c8", "--peers", "2..100000000000"), "a swarm has 2 to 64 peers"),
        (("geo-c8", "--peers", "two"), "write a range such as 2..16"),
        (("geo-c8", "--options", "colour"), "'colour' is neither any nor compression"),
        (
            ("geo-c8", "--set", "min_peers=8", "--peers", "2..4"),
            "all are fewer than the experiment's min_peers 8",
        ),
        (("digits-alone",), "trains a single peer without a swarm"),
        (("stdlib-lm-2",), "nothing can be predicted: the size of causal-lm is unknown"),
        (("geo-c8", "--set", "prices=nothing.csv"), "nothing.csv"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
):
    out, err = advise(capsys, *arguments, code=2)
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    _, err = advise(capsys, *_FEW, "--write", str(taken / "below"), code=2)
    assert "cannot write the proposals" in err


def test_what_if_predicts_changes_beside_the_experiment(capsys: pytest.CaptureFixture[str]):
    arguments = (
        "geo-c8",
        "--what-if",
        "+2 eu",
        "--what-if",
        "tuning=wan",
        "--what-if",
        "prices=list-2026-11",
    )
    found = as_json(capsys, *arguments)
    rows = {each["change"]: each for each in found["what_if"]}
    assert list(rows) == ["", "+2 eu", "tuning=wan", "prices=list-2026-11"]
    p = predict(load("geo-c8", ["peers.eu.count=4"]), load_book("study-2023-04"))
    assert p.sps is not None
    assert rows["+2 eu"]["sps"] == {"value": p.sps.value, "low": p.sps.low, "high": p.sps.high}
    assert rows["+2 eu"]["time_to_samples_s"]["value"] == pytest.approx(found["samples"] / p.sps.value)
    tuned = predict(load("geo-c8", ["network_tuning=wan"]))
    assert tuned.sps is not None
    assert rows["tuning=wan"]["sps"] == {
        "value": tuned.sps.value,
        "low": tuned.sps.low,
        "high": tuned.sps.high,
    }
    assert rows["prices=list-2026-11"]["sps"] == rows[""]["sps"]
    assert rows["prices=list-2026-11"]["usd_per_h"] != rows[""]["usd_per_h"]
    out, _ = advise(capsys, *arguments)
    factor = rows["+2 eu"]["sps"]["value"] / rows[""]["sps"]["value"]
    assert f"  {factor:.4g}  " in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--what-if", "+1 mars"), "--what-if no group is called mars"),
        (("--what-if", "swarm.nothing=1"), "--what-if 'swarm.nothing=1': "),
        (("--what-if", "swarm.nothing=1"), "unknown key 'nothing'"),
        (("--what-if", "+99 eu"), "--what-if '+99 eu': "),
        (("--what-if", "+1 eu", "--min-sps", "3"), "leave out the goals, --write and --report"),
    ],
)
def test_a_wrong_change_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
):
    out, err = advise(capsys, "geo-c8", *arguments, code=2)
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_place_is_priced_as_the_file_prefers(
    first: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """Spot and on demand in one zone: the file's first choice counts, as in `orch plan`."""
    at = "gcp/us-central1/us-central1-a"
    places = ", ".join(
        f'{{infra: {at}, accelerators: "T4:1", use_spot: {str(spot).lower()}}}' for spot in (first, not first)
    )
    text = yaml.safe_load((find("geo-a2", shipped=True)).read_text())
    text["peers"] = [{"name": "us", "count": 2, "any_of": yaml.safe_load(f"[{places}]")}]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(text))
    assert run(["advise", str(file), "--peers", "2", "-o", "json"]) == 0
    (proposal,) = json.loads(capsys.readouterr().out)["proposals"]
    assert run(["plan", str(file), "-o", "json"]) == 0
    planned = json.loads(capsys.readouterr().out)["prediction"]["usd_per_h"]
    assert proposal["usd_per_h"]["value"] == pytest.approx(planned["value"], rel=1e-4)


def test_the_page_is_beside_the_text_and_named_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    page = tmp_path / "advice.html"
    few = ("geo-c8-nlp", "--peers", "2..3", "--max-per-place", "1")
    found = as_json(capsys, *few, "--report", str(page))
    assert found.pop("report") == str(page)
    assert found == as_json(capsys, *few)
    html = page.read_text()
    assert "<h1>Advice: geo-c8-nlp</h1>" in html
    assert "No run of this experiment or of its proposals has a measured epoch here." in html
    assert page.with_name("advice_files").is_dir()
    out, err = advise(capsys, *few, "--report", str(page))
    assert err == f"wrote {page}\n"
    assert out == advise(capsys, *few)[0]


def test_a_page_is_written_although_no_goal_is_met(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    page = tmp_path / "unmet.html"
    arguments = ("geo-c8-nlp", "--peers", "2", "--max-per-place", "1", "--min-sps", "10000")
    assert as_json(capsys, *arguments, "--report", str(page), code=3)["report"] == str(page)
    assert "No combination meets --min-sps 10000; the nearest is" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--report", "."), ".: not a file in an existing folder; use for example --report advice.html"),
        (("--report", "no/such/folder/x.html"), "not a file in an existing folder"),
        (("--report", "x.html", "--what-if", "+1 eu"), "leave out the goals, --write and --report"),
    ],
)
def test_a_page_that_cannot_be_written(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
):
    out, err = advise(capsys, "geo-c8-nlp", *arguments, code=2)
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_files_of_the_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "x_files").write_text("a file")
    page = tmp_path / "x.html"
    _, err = advise(capsys, "geo-c8-nlp", "--peers", "2", "--report", str(page), code=2)
    assert "cannot write the page" in err
    assert not page.exists()
