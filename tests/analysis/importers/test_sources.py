"""Opening run folders, folders of runs and folders of logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run
from wandb_logs import Swarm, write_baseline, write_swarm

from analysis.importers.base import ImportFailed
from analysis.importers.wandb.files import discover, parse_name
from analysis.importers.wandb.words import accelerator, model_name, where
from analysis.sources import Source, opened


def test_logs_and_run_folders_can_be_combined(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    write_baseline(tmp_path / "logs" / "deep" / "er")
    write_run(tmp_path / "runs" / "one", peers=2, epochs=2)
    write_run(tmp_path / "own", peers=2, epochs=2)
    with opened([tmp_path / "logs", tmp_path / "runs", tmp_path / "own"]) as found:
        assert [(run.run_id, run.imported) for run in found.runs] == [
            ("baseline-901", True),
            ("hivemind-900", True),
            ("geo-c8-20231114-aaaa", False),
            ("geo-c8-20231114-aaaa", False),
        ]
        assert found.problems == ()
        scratch = found.runs[0].folder
        assert (scratch / "run.db").is_file()
        assert found.runs[3].folder == tmp_path / "own"
    assert not scratch.exists()
    assert (tmp_path / "own" / "run.db").is_file()


def test_unusable_target_is_a_problem_or_an_error_if_alone(tmp_path: Path):
    write_run(tmp_path / "own", peers=2, epochs=2)
    (tmp_path / "empty").mkdir()
    with opened([tmp_path / "own", tmp_path / "empty", tmp_path / "gone"]) as found:
        assert [type(run) for run in found.runs] == [Source]
        assert found.problems[0].startswith(f"{tmp_path / 'empty'}: contains no run")
        assert (
            found.problems[1]
            == f"{tmp_path / 'gone'}: no such folder; name a run's folder or a folder of logs."
        )
    with (
        pytest.raises(ImportFailed, match=r"contains no run: no run\.db, no orch export and no logs"),
        opened([tmp_path / "empty"]),
    ):
        pass
    with pytest.raises(ImportFailed, match="no run was given"), opened([]):
        pass
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(b"no database" * 100)
    with pytest.raises(ImportFailed, match="is not a run's database"), opened([tmp_path / "broken"]):
        pass


def test_imported_runs_are_deleted_after_an_error(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    seen: list[Path] = []
    with pytest.raises(ZeroDivisionError), opened([tmp_path / "logs"]) as found:  # noqa: PT012
        seen.append(found.runs[0].folder)
        raise ZeroDivisionError
    assert not seen[0].exists()


def test_only_and_index_are_passed_to_the_importer(tmp_path: Path):
    write_swarm(tmp_path / "logs", Swarm())
    write_swarm(tmp_path / "logs", Swarm(run_id="hivemind-901"))
    with opened([tmp_path / "logs"], only=["hivemind-901"]) as found:
        assert [run.run_id for run in found.runs] == ["hivemind-901"]
    # An index may name files that no name gives away.
    (tmp_path / "odd").mkdir()
    (tmp_path / "logs" / "hivemind-900-gc-us-t4-1.csv").rename(tmp_path / "odd" / "first.csv")
    index = tmp_path / "odd-index.csv"
    index.write_text("file,run_id,host,role,label\nodd/first.csv,mine-1,vm-a,bee,Mine\n")
    with opened([tmp_path / "odd"], index=index) as found:
        assert [(run.run_id, run.label) for run in found.runs] == [("mine-1", "Mine")]


@pytest.mark.parametrize(
    ("name", "run", "role", "host", "model", "gpu"),
    [
        ("hivemind-81-gc-t4-1.csv.gz", "hivemind-81", "bee", "gc-t4-1", None, "T4:1"),
        ("hivemind-81-vm-monitor.csv", "hivemind-81", "monitor", "vm-monitor", None, None),
        ("baseline-75-torchvision.models.convnext_large-gc-t4.csv", "baseline-75", "baseline", "gc-t4", "ConvNextLarge", "T4:1"),
        ("baseline-76-roberta_mlm_xlm-gc-t4-1.csv.gz", "baseline-76", "baseline", "gc-t4-1", "RoBERTaXLM", "T4:1"),
        ("baseline-9-openai-whisper-small-lambda-a10-3.csv", "baseline-9", "baseline", "lambda-a10-3", "WhisperSmall", "A10:1"),
        ("hivemind-200-azure-t4-2.csv", "hivemind-200", "bee", "azure-t4-2", None, "T4:1"),
        ("hivemind-201-on-prem-rtx8000-1.csv", "hivemind-201", "bee", "on-prem-rtx8000-1", None, "RTX8000:1"),
        ("hivemind-202-dgx2.csv", "hivemind-202", "bee", "dgx2", None, "V100:8"),
        ("baseline-3-vgg-gc-a100-1.csv", "baseline-3", "baseline", "gc-a100-1", "vgg", "A100:1"),
        ("hivemind-203-server7.csv", "hivemind-203", "bee", "server7", None, None),
    ],
)  # fmt: skip
def test_names_are_parsed(name: str, run: str, role: str, host: str, model: str | None, gpu: str | None):
    log = parse_name(Path(name), name)
    assert log is not None
    assert (log.run_id, log.role, log.host, log.model, log.gpu) == (run, role, host, model, gpu)


@pytest.mark.parametrize("name", ["INDEX.csv", "hivemind-81.csv", "notes.csv", "hivemind-81-gc-t4-1.txt"])
def test_other_names_are_not_logs(name: str):
    assert parse_name(Path(name), name) is None


@pytest.mark.parametrize(
    ("name", "location", "cloud"),
    [
        ("GC-US", "gcp/us-central1", "gcp"),
        ("GC-EU", "gcp/europe-west1", "gcp"),
        ("GC-ASIA", "gcp/asia-east1", "gcp"),
        ("GC-AUS", "gcp/australia-southeast1", "gcp"),
        ("AWS-US", "aws/us-west-2", "aws"),
        ("AZURE-US", "azure/southcentralus", "azure"),
        ("LAMBDA-US", "lambda/us-west-2", "lambda"),
        ("ONPREM-EU", "onprem/eu", "onprem"),
        ("on-prem-eu", "onprem/eu", "onprem"),
        ("gc-eu-t4-3", "gcp/europe-west1", "gcp"),
        ("gcp/us-west1/us-west1-b", "gcp/us-west1/us-west1-b", "gcp"),
        ("gc-t4-1", "unknown", "gcp"),
        ("GC-MOON", "unknown", "gcp"),
        ("server7", "unknown", None),
        ("gcp/nowhere", "unknown", None),
        ("", "unknown", None),
    ],
)
def test_places_from_an_index_and_from_host_names(name: str, location: str, cloud: str | None):
    place = where(name)
    assert (place.location, place.cloud) == (location, cloud)
    assert place.remark or location != "unknown"


def test_gpus_and_models_in_any_spelling():
    gpus = ("T4", "Tesla T4", "Quadro RTX 8000", "DGX-2", "8x V100", "A100-80GB", "", "TPU")
    assert [accelerator(g) for g in gpus] == [
        "T4:1",
        "T4:1",
        "RTX8000:1",
        "V100:8",
        "V100:8",
        "A100:1",
        None,
        None,
    ]
    names = (
        "ResNet18",
        "torchvision.models.wide_resnet101_2",
        "wide_resnet50_2",
        "openai/whisper-tiny.en",
        "roberta_mlm_base",
        "xlm-roberta-base",
    )
    assert [model_name(m) for m in names] == [
        "ResNet18",
        "WideResNet101_2",
        None,
        "WhisperTiny",
        "RoBERTaBase",
        None,
    ]


def test_runs_come_in_natural_order_without_an_index(tmp_path: Path):
    for number in (10, 9, 100):
        (tmp_path / f"hivemind-{number}-gc-t4-1.csv").write_text("x")
    runs, problems = discover(tmp_path, None, ())
    assert [run.run_id for run in runs] == ["hivemind-9", "hivemind-10", "hivemind-100"]
    assert problems == []
