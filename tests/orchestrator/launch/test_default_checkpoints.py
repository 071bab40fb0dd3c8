"""Checkpoints of rented runs that do not mention them: stored if the place is writable, never a reason to refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from moto import mock_aws

from cloud.sky.aws import role
from cloud.storage.client import make_client
from experiments.parse.load import from_document, load, to_document
from experiments.schema.models import ExperimentSpec
from metrics.store.database import RunStore
from orchestrator.cli.starting import plan_for
from orchestrator.launch.default_checkpoints import (
    DEFAULT,
    with_default_checkpoints,
    with_writable_checkpoints,
)
from orchestrator.launch.obstacles import ObstacleCode
from orchestrator.launch.plan_run import approved_plan, host_cores
from orchestrator.launch.prepare import prepare
from orchestrator.launch.rent_checks import aws_buckets, aws_written

FILE = """
name: real
model: ResNet50
data:
  shards: s3://images/train-{000000..000003}.tar
  location: aws/us-west-2
  region: us-west-2
swarm: {target_batch_size: 8192, batch_size: 64}
peers:
  - name: us
    count: 2
    resources: {infra: aws/us-west-2/us-west-2a, accelerators: "T4:1", max_usd_per_h: 12}
emulation: null
"""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


@pytest.fixture
def real(tmp_path: Path):
    def loaded(*changes: str) -> ExperimentSpec:
        file = tmp_path / "real.yaml"
        file.write_text(FILE)
        return load(str(file), changes)

    return loaded


def test_they_are_the_default_of_rented_vms_only(real):
    assert with_default_checkpoints(real(), "sky") == (real().model_copy(update={"checkpoint": DEFAULT}), "")
    assert with_default_checkpoints(real(), "local")[0].checkpoint is None
    assert with_default_checkpoints(real("checkpoint=null"), "sky")[0].checkpoint is None
    assert with_default_checkpoints(load("geo-b2"), "sky")[0].checkpoint is None, "a padded stand-in"
    own = real("checkpoint.every_epochs=5")
    assert with_default_checkpoints(own, "sky") == (own, "")
    assert own.checkpoint is not None
    assert own.checkpoint.required


def test_off_stays_off_in_a_saved_plan(real):
    plan = plan_for(real("checkpoint=null"), "sky")
    again = plan_for(from_document(to_document(plan.spec)), "sky")
    assert plan.spec.checkpoint is again.spec.checkpoint is plan.document["checkpoints"] is None


def test_the_plan_has_them(real):
    plan = plan_for(real(), "sky")
    assert plan.document["launchable"]
    assert plan.document["checkpoints"]["writer"] == "us-0"
    [note] = [note for note in plan.document["notes"] if "checkpoint: null stores none" in note]
    assert "s3://images/checkpoints" in note
    assert from_document(to_document(plan.spec)).checkpoint == DEFAULT


def test_private_data_is_a_warning(real):
    plan = plan_for(real("data.private=true"), "sky")
    assert plan.document["launchable"]
    assert plan.spec.checkpoint is None
    assert "data.private" in plan.document["warnings"][0]
    assert "data.private" in plan.warnings[0]
    saved = json.loads(json.dumps(plan.document))
    again = approved_plan(plan.spec, "sky", saved, cores=host_cores())
    assert again.warnings == plan.warnings


def test_a_budget_that_cannot_be_kept_with_them_does_without(real):
    changes = (
        "model=ConvNextLarge", "data.location=gcp/us-central1", "data.endpoint=http://203.0.113.9", "budget_usd=2.9",
        "secrets={AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}", "peers.us.resources.max_usd_per_h=null",
    )  # fmt: skip
    [refused] = plan_for(real(*changes, "checkpoint.every_s=3600"), "sky").obstacles
    assert refused.code is ObstacleCode.DOLLAR_LIMIT
    default = plan_for(real(*changes), "sky")
    assert default.document["launchable"]
    assert default.spec.checkpoint is None
    assert "limits in dollars" in default.warnings[0]


@mock_aws
def test_a_missing_bucket_is_a_warning_that_the_run_keeps(real, tmp_path: Path):
    plan = plan_for(real(), "sky")
    checked = with_writable_checkpoints(plan)
    assert checked.spec.checkpoint is None
    assert checked.document["checkpoints"] is None
    assert not checked.obstacles
    assert re.match("no checkpoints are stored, .*no bucket 'images'", checked.document["warnings"][0])
    assert checked.core is not None
    assert plan.core is not None
    assert checked.core.straggler_s < plan.core.straggler_s
    folder = prepare(checked, tmp_path / "real.yaml", "real-1", tmp_path / "home", now_s=1.0)
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    assert [warning[:28] for warning in meta.warnings] == ["No checkpoints are stored, s"]
    assert from_document(meta.document).checkpoint is None


@mock_aws
def test_a_writable_bucket_is_used_and_left_as_it_is(real):
    client = make_client(region="us-west-2")
    client.create_bucket(Bucket="images", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    plan = plan_for(real(), "sky")
    assert with_writable_checkpoints(plan) is plan
    assert "Contents" not in client.list_objects_v2(Bucket="images")


@mock_aws
def test_an_administrators_role_that_may_not_write_is_a_warning(real):
    client = make_client(region="us-west-2")
    client.create_bucket(Bucket="images", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    plan = plan_for(real(), "sky")
    role.ensure(aws_buckets(plan.spec), sleep=lambda _: None)
    checked = with_writable_checkpoints(plan)
    assert "none that may also write images/checkpoints" in checked.warnings[0]
    assert aws_written(checked.spec) == ()
    role.ensure(aws_buckets(plan.spec), sleep=lambda _: None, written=aws_written(plan.spec))
    assert with_writable_checkpoints(plan) is plan
