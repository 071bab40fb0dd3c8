"""The audit of the paper's logs (shared/PAPER.md has the figures)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from analysis.audit.audit import audit
from analysis.audit.evidence import Evidence
from analysis.audit.findings import Finding
from analysis.sources import opened
from metrics.store.database import RunStore

pytestmark = pytest.mark.slow

TIMERS = ["dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step"]


@cache
def _findings(folder: Path) -> tuple[Finding, ...]:
    runs: list[Evidence] = []
    with opened([folder]) as sources:
        for source in sources.runs:
            with RunStore.open_reader(source.folder / "run.db") as store:
                runs.append(Evidence.of(store))
    return tuple(audit(runs))


@pytest.fixture
def found(paper_traces: Path) -> tuple[Finding, ...]:
    """All findings of the folder, computed once."""
    return _findings(paper_traces)


def test_the_mixed_clock_is_found_in_every_run(found: tuple[Finding, ...], paper_traces: Path):
    index = pd.read_csv(paper_traces / "INDEX.csv")
    mixed = {f.run_id: f for f in found if f.check == "mixed-clock"}
    assert mixed.keys() == set(index["run_id"])
    assert len(mixed) == 20
    for f in mixed.values():
        assert f.severity == "doubt"
        assert f"{f.value * 100:.3g} % of the wall time" in f.sentence


@pytest.mark.parametrize(
    "run_id", ["baseline-75", "baseline-76", "hivemind-81", "hivemind-79", "hivemind-80", "hivemind-88"]
)
def test_untimed_share_equals_that_of_the_columns(
    run_id: str, found: tuple[Finding, ...], paper_traces: Path
):
    """Independent computation: sums of the logs' columns between the first and the last averaging round."""
    index = pd.read_csv(paper_traces / "INDEX.csv")
    timed = wall = 0.0
    for name in index[(index["run_id"] == run_id) & (index["role"] != "monitor")]["file"]:
        log = pd.read_csv(paper_traces / name)
        columns = [log[f"02_timing/{timer}_time_s"].dropna() for timer in TIMERS]
        optimizer = columns[-1]
        at = log.loc[optimizer.index, "_runtime"].to_numpy()
        if run_id.startswith("baseline"):
            first, last = len(at) // 10, len(at) - 1
        else:
            averaged = (optimizer >= optimizer.median() + 2 * optimizer.std()).to_numpy().nonzero()[0]
            first, last = averaged[0], averaged[-1]
        wall += at[last] - at[first]
        timed += sum(column.iloc[first + 1 : last + 1].sum() for column in columns)
    share = next(f.value for f in found if f.check == "mixed-clock" and f.run_id == run_id)
    assert share == pytest.approx(1 - timed / wall, abs=0.01)


def test_eight_t4s_on_one_clock(found: tuple[Finding, ...]):
    study = [f for f in found if f.run_id is None]
    assert len(study) == 1
    assert study[0].severity == "error"
    assert study[0].sentence == (
        "On one clock 8 T4s are 7.1 times (ConvNextLarge, CV A-8) and 4.1 times (RoBERTaXLM, NLP A-8) as fast as one, "
        "not 3.24 and 2.75: speed-ups over a phase-timed baseline are wrong."
    )


def test_every_swarm_has_its_speed_up_on_one_clock(found: tuple[Finding, ...]):
    own = {f.label: f for f in found if f.check == "speed-up" and f.run_id is not None}
    assert len(own) == 18
    assert own["CV A-8"].expected == pytest.approx(7.1, abs=0.05)
    assert own["CV A-8"].value == pytest.approx(3.24, abs=0.01)
    assert own["NLP A-8"].expected == pytest.approx(4.1, abs=0.05)
    assert own["NLP A-8"].value == pytest.approx(2.75, abs=0.01)


def test_paper_logs_have_no_false_positives(found: tuple[Finding, ...]):
    """A and B have no doubled counters and no findings about peers, bytes, clocks, the monitor or samples."""
    assert {f.check for f in found if f.severity != "note"} == {"mixed-clock", "speed-up", "few-epochs"}


def test_every_mean_has_two_epochs(found: tuple[Finding, ...]):
    few = {f.label: f for f in found if f.check == "few-epochs"}
    assert len(few) == 18
    assert {f.n for f in few.values()} == {2}
    # 494.6 and 401.4 sps: the mean of two epochs has a wide interval.
    assert few["NLP B-8"].severity == "doubt"
    assert few["NLP B-8"].value == pytest.approx(12.706 * 65.9 / 2**0.5 / 448.0, rel=0.01)
