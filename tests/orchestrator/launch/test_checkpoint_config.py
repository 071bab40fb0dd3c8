"""Checkpoints of a launch: what peers are told, where they are stored, and a place that is not writable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moto import mock_aws

from cloud.storage.client import make_client
from experiments.parse.load import load
from experiments.peer.checkpoints.schedule import Checkpointing
from experiments.schema.models import ExperimentSpec
from metrics.store.meta import RunMeta, RunScales
from orchestrator.errors import UsageError
from orchestrator.launch import preflight
from orchestrator.launch.checkpoint_config import checkpoint_config
from orchestrator.launch.local_checks import local_obstacles
from orchestrator.launch.obstacles import ObstacleCode
from orchestrator.launch.prepare import _local_options
from orchestrator.launch.rent_checks import aws_written

RUN = "glyphs-2-20261127-0000"


def spec_of(*changes: str) -> ExperimentSpec:
    return load("glyphs-2", changes)


def test_what_peers_are_told():
    told = checkpoint_config(RunMeta(run_id=RUN), spec_of("checkpoint.every_epochs=5"))
    assert told is not None
    settings = Checkpointing.of(told)
    assert settings == Checkpointing(f"s3://glyphs/checkpoints/{RUN}", 2, ("us-0", "eu-0"), every_epochs=5)
    assert checkpoint_config(RunMeta(run_id=RUN), load("local-2")) is None


def test_the_embedded_store_keeps_the_newest_one():
    meta = RunMeta(run_id=RUN, scales=RunScales())
    store = _local_options(spec_of(), meta, Path("/runs/x")).store
    assert store.keep == "experiments.checkpoints.keep:keep_newest"
    assert store.keep_arguments == {
        "prefix": f"s3://glyphs/checkpoints/{RUN}",
        "folder": "/runs/x/checkpoints",
    }
    assert _local_options(spec_of("checkpoint=null"), meta, Path("/runs/x")).store.keep == ""


def test_the_embedded_store_has_one_bucket():
    assert list(local_obstacles(spec_of("checkpoint.to=s3://glyphs/mine"))) == []
    (obstacle,) = local_obstacles(spec_of("checkpoint.to=s3://elsewhere/mine"))
    assert obstacle.code is ObstacleCode.CHECKPOINT_PLACE
    assert "bucket elsewhere" in obstacle.text
    own = ("data.endpoint=http://10.0.0.1:9000", "checkpoint.to=s3://elsewhere/mine")
    assert list(local_obstacles(spec_of(*own))) == []


def test_the_role_may_write_checkpoints_only_without_keys():
    on_aws = [f"peers.{group}.resources.infra=aws/us-west-2/us-west-2a" for group in ("us", "eu")]
    changes = [*on_aws, "emulation=null", "data.location=aws/us-west-2"]
    assert aws_written(spec_of(*changes)) == ("glyphs/checkpoints",)
    assert aws_written(spec_of(*changes, "checkpoint.to=s3://mine/some/models")) == ("mine/some/models",)
    assert (
        aws_written(spec_of(*changes, "secrets={AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}")) == ()
    )
    assert aws_written(spec_of(*changes, "checkpoint=null")) == ()


@mock_aws
def test_a_place_that_is_not_writable_is_found_before_anything_is_rented(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    plan: Any = SimpleNamespace(spec=spec_of(), on="sky", target=SimpleNamespace(rents=True))
    with pytest.raises(UsageError) as caught:
        preflight._check_checkpoints(plan, {})
    for said in (
        "checkpoints cannot be stored below s3://glyphs/checkpoints",
        "no bucket 'glyphs'",
        "data.private: true",
    ):
        assert said in str(caught.value)
    client = make_client(region="us-east-1")
    client.create_bucket(Bucket="glyphs")
    preflight._check_checkpoints(plan, {})
    assert "Contents" not in client.list_objects_v2(Bucket="glyphs"), "nothing is left of the check"
