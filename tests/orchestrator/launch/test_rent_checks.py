"""What can be launched on rented VMs: accelerators without measurements, and refusals before renting."""

from __future__ import annotations

import io
import json
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from analysis.planning.reserve import egress_ceiling_usd_per_h, epoch_egress_usd, pace_of
from cloud.prices.book import load_for
from cloud.storage.errors import BucketMissingError, StoreRefusedError, StoreUnreachableError
from experiments.parse.load import load
from experiments.peer.config import PeerConfig
from experiments.schema.models import ExperimentSpec
from metrics.store.database import RunStore
from orchestrator.cli.starting import plan_for
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay
from orchestrator.errors import UsageError
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.preflight import make_aws_role, preflight
from orchestrator.launch.prepare import prepare
from orchestrator.launch.rent_checks import STORE_KEYS, aws_buckets, rent_obstacles

TWIN = str(Path(__file__).parents[2] / "cloud_e2e" / "twin.yaml")
FILE = """
name: real
model: {model}
data:
  shards: s3://images/train-{{000000..000003}}.tar
  endpoint: https://s3.us-west-004.backblazeb2.com
secrets: {{AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}}
swarm: {{target_batch_size: 8192, batch_size: 64}}
peers:
  - name: us
    count: 2
    resources: {{infra: gcp/us-central1/us-central1-a, accelerators: "{accelerator}", max_usd_per_h: 12}}
emulation: null
budget_usd: 500
"""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in STORE_KEYS:
        monkeypatch.setenv(name, "the cloud's")
        monkeypatch.setenv(f"ORCH_SECRET_{name}", f"the store's {name}")


def real(tmp_path: Path, model: str = "ConvNextLarge", accelerator: str = "H100:1") -> Path:
    file = tmp_path / "real.yaml"
    file.write_text(FILE.format(model=model, accelerator=accelerator))
    return file


@pytest.mark.parametrize(
    ("model", "accelerator"),
    [("ConvNextLarge", "H100:1"), ("ResNet50", "L4:1"), ("digits", "CPU:4"), ("ConvNextLarge", "T4:1")],
)
def test_real_training_needs_no_step_time(
    tmp_path: Path, model: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.launch.keys.generate_identity", lambda: (b"identity", "id"))
    monkeypatch.setattr("orchestrator.launch.keys.generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))
    file = real(tmp_path, model, accelerator)
    spec = load(str(file))
    plan = plan_for(spec, "sky").document
    measured = accelerator == "T4:1"
    assert (plan["duration_s"] is not None) == (plan["raw_duration_s"] is not None) == measured
    assert any("its duration is unknown" in note for note in plan["notes"]) != measured
    assert (plan["launchable"], plan["obstacles"]) == (True, [])
    folder = prepare(
        approved_plan(spec, "sky", plan, cores=2), file, "real-1", tmp_path / "orch", now_s=1000.0
    )
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")
    with RunStore.open_reader(folder / "run.db") as store:
        meta, told = store.all_meta(), replay(store.records("events")).spec
        request = RunRequests(folder, store).peer(
            RequestVm("real-1-us-0-0", "us-0", 0, 0, ()), told.slots[0].places[0]
        )
    assert (meta["emulated"], meta["sync_work_s"]) == (False, {})
    assert meta["model"]["ran"] == ("digits network" if model == "digits" else model)
    assert meta["raw_target_batch_size"] == spec.swarm.target_batch_size
    (tmp_path / "config.json").write_text(json.dumps(dict(request.config)))
    config = PeerConfig.load(tmp_path / "config.json")
    assert (config.emulated, config.coalesce, config.target_batch_size) == (False, 1, 8192)
    assert (config.forward_s, config.backward_s, config.sync_work_s) == (0, 0, 0), "a real step is not padded"
    assert config.part_size_bytes == 2**19


def test_without_a_measured_step_traffic_is_reserved_at_its_maximum(tmp_path: Path):
    unknown = load(str(real(tmp_path)), ["checkpoint=null"])
    known = load(str(real(tmp_path, accelerator="T4:1")), ["checkpoint=null"])
    budgets = [plan_for(spec, "sky").document["budget"] for spec in (unknown, known)]
    dearest, expected = (Decimal(budget["egress_usd_per_h"]) for budget in budgets)
    assert dearest > expected > 0
    epoch_usd = epoch_egress_usd(unknown, load_for(unknown.prices, rented=True), rented=True)
    assert epoch_usd is not None
    by_hand = egress_ceiling_usd_per_h(epoch_usd, 5.0, pace_of(None, True, unknown.lease_s))
    assert dearest == by_hand.quantize(Decimal("0.01"))


def changed(**data: Any) -> ExperimentSpec:
    spec = load(TWIN)
    top = {key: data.pop(key) for key in ("secrets", "file_mounts", "emulation", "model") if key in data}
    return spec.model_copy(update={"data": spec.data.model_copy(update=data), **top})


@pytest.mark.parametrize(
    ("changes", "code", "wrong"),
    [
        ({}, "", ""),
        ({"endpoint": ""}, "store_unreachable", "cannot reach the embedded store"),
        ({"endpoint": "http://127.0.0.1:9000"}, "store_unreachable", "this machine's loopback"),
        ({"endpoint": "http://localhost:9000"}, "store_unreachable", "this machine's loopback"),
        ({"endpoint": "", "location": "aws/us-east-1"}, "", ""),
        ({"endpoint": "https://s3.example.org"}, "", ""),
        ({"secrets": {}}, "store_keys", "AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null"),
        ({"secrets": {"AWS_ACCESS_KEY_ID": None}}, "store_keys", "{AWS_SECRET_ACCESS_KEY: null}"),
        # all of the twin's VMs are AWS's, and read S3 by their own role
        ({"endpoint": "", "location": "aws/us-east-1", "secrets": {}}, "", ""),
        ({"endpoint": "https://s3.us-east-1.amazonaws.com", "secrets": {}}, "", ""),
        (
            {"endpoint": "https://amazonaws.com.example.org", "secrets": {}},
            "store_keys",
            "get no keys of the store",
        ),
        ({"model": "RoBERTaXLM", "emulation": None}, "model_data", "trains on text"),
        ({"model": "WhisperTiny", "emulation": None}, "model_data", "trains on speech"),
        ({"model": "RoBERTaXLM"}, "", ""),
        (
            {"file_mounts": {"~/data": "/no/such/folder"}},
            "file_mount",
            "/no/such/folder, which does not exist",
        ),
        ({"file_mounts": {"~/data": "data"}}, "file_mount", "use an absolute path"),
        ({"file_mounts": {"~/data": "/tmp", "~/b": "s3://bucket"}}, "", ""),
    ],
)
def test_obstacles_are_refused_and_shown_in_the_plan(
    changes: dict[str, Any], code: str, wrong: str, tmp_path: Path
):
    spec = changed(**changes)
    plan = plan_for(spec, "sky")
    assert plan.document["launchable"] == (not wrong)
    assert plan.document["obstacles"] == [obstacle.as_dict() for obstacle in plan.obstacles]
    assert list(rent_obstacles(spec)) == list(plan.obstacles)
    if not wrong:
        assert not plan.obstacles
        return
    with pytest.raises(UsageError, match=wrong):
        preflight(plan, tmp_path)
    assert code in [obstacle.code for obstacle in plan.obstacles if wrong in obstacle.text]


def test_vms_outside_aws_have_no_aws_role():
    spec = load("geo-b2", ["emulation=null", "data.location=aws/us-east-1"])
    assert "store_keys" in [obstacle.code for obstacle in rent_obstacles(spec)]


class Store:
    """Answers with a whole tar, or as told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("0.png"))
        self.tar = file.getvalue()

    def get_object(self, **asked: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        first, _, last = asked["Range"].removeprefix("bytes=").partition("-")
        return {
            "Body": io.BytesIO(self.tar[int(first) : int(last) + 1]),
            "ContentRange": f"bytes {first}-{last}/{len(self.tar)}",
        }


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Preflight of a spec whose store answers as given; what the store was asked with."""
    for name in ("_packages", "_credentials"):
        monkeypatch.setattr(f"orchestrator.launch.machine_checks.{name}", lambda *_: ())
    monkeypatch.setattr("cloud.sky.aws.role.is_there", lambda buckets, written: False)

    def asked(spec: ExperimentSpec, error: Exception | None = None) -> dict[str, Any]:
        keys: dict[str, Any] = {}

        def client(endpoint: str, **options: Any) -> Store:
            keys.update(options, endpoint=endpoint)
            return Store(error)

        monkeypatch.setattr("cloud.storage.client.make_client", client)
        preflight(plan_for(spec, "sky"), tmp_path)
        return keys

    return asked


def refusal(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetObject")


def test_shards_are_checked_with_the_vms_keys(look):
    keys = look(load(TWIN))
    assert keys["endpoint"] == "http://198.18.0.1:9000"
    assert keys["access_key"] == "the store's AWS_ACCESS_KEY_ID"
    assert keys["secret_key"] == "the store's AWS_SECRET_ACCESS_KEY"
    by_role = look(changed(endpoint="", location="aws/us-east-1", secrets={}))
    assert (by_role["access_key"], by_role["session_token"]) == (None, None), "those that boto3 finds here"


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (refusal("SignatureDoesNotMatch", 403), StoreRefusedError, "ORCH_SECRET_AWS_SECRET_ACCESS_KEY"),
        (refusal("NoSuchBucket", 404), BucketMissingError, "has no bucket 'digits'"),
        (EndpointConnectionError(endpoint_url="x"), StoreUnreachableError, r"set data\.private: true"),
    ],
)
def test_an_unreadable_store_fails_the_launch(look, error, raised, says):
    with pytest.raises(raised, match=says):
        look(load(TWIN), error)
    assert look(changed(private=True), error) == {}, "only the VMs reach it: nobody looks"


def test_mounts_are_checked_before_renting(look):
    with pytest.raises(UsageError, match="which does not exist"):
        look(changed(file_mounts={"~/data": "/no/such/folder"}))


@pytest.mark.parametrize("private", [False, True])
def test_aws_keys_are_not_passed_to_other_stores(look, monkeypatch: pytest.MonkeyPatch, private: bool):
    """Exported as AWS_* they may rent VMs; every VM would have them."""
    monkeypatch.delenv("ORCH_SECRET_AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match=r"export the store's as ORCH_SECRET_AWS_SECRET_ACCESS_KEY$"):
        look(changed(private=private))
    amazons = changed(endpoint="https://s3.us-east-1.amazonaws.com", private=private)
    look(amazons)


def test_a_budget_that_ends_the_run_early_is_reported(tmp_path: Path):
    spec = load(TWIN)
    plan = plan_for(spec.model_copy(update={"budget_usd": Decimal(100)}), "sky").document
    assert not any("before its end" in note for note in plan["notes"])
    left = Decimal(plan["vm_usd"]) / 2
    tight = plan_for(
        spec.model_copy(update={"budget_usd": Decimal(plan["budget"]["reserve_usd"]) + left}), "sky"
    ).document
    (note,) = [note for note in tight["notes"] if "before its end" in note]
    assert f"without its reserve the budget has ${left:.2f}" in note


def test_the_role_reads_buckets_without_keys():
    own = changed(endpoint="", location="aws/us-west-2", secrets={})
    assert aws_buckets(own) == ("digits",)
    mounts = {"~/x": "s3://more/y", "~/z": "gs://b"}
    mounted = changed(endpoint="", location="aws/us-west-2", secrets={}, file_mounts=mounts)
    assert aws_buckets(mounted) == ("digits", "more")
    assert aws_buckets(load(TWIN)) == (), "its secrets have the store's keys"


def test_a_pattern_may_name_several_buckets(monkeypatch: pytest.MonkeyPatch):
    own = changed(endpoint="", location="aws/us-west-2", secrets={}, shards="s3://mine-{a,b}/x-{0..1}.tar")
    assert aws_buckets(own) == ("digits", "mine-a", "mine-b"), "of its shards and of what it holds out"
    many = changed(endpoint="", location="aws/us-west-2", secrets={}, shards="s3://mine/{0..99999}.tar")
    monkeypatch.setattr("orchestrator.launch.rent_checks.shard_urls", lambda pattern: pytest.fail("expanded"))
    assert aws_buckets(many) == ("digits", "mine")


def test_the_role_is_only_read_before_the_prompt(look, monkeypatch: pytest.MonkeyPatch):
    did: list[tuple[str, ...]] = []

    def make(buckets: tuple[str, ...], written: tuple[str, ...]) -> None:
        did.append(("made", *buckets, *written))

    monkeypatch.setattr("cloud.sky.aws.role.ensure", make)
    monkeypatch.setattr(
        "cloud.sky.aws.role.is_there", lambda buckets, written: did.append(("looked at", *buckets))
    )
    by_role = changed(endpoint="", location="aws/us-east-1", secrets={})
    look(by_role)
    assert did == [("looked at", "digits")]
    make_aws_role(by_role, "sky")
    assert did.pop() == ("made", "digits")
    make_aws_role(by_role, "local")
    make_aws_role(load("geo-b2"), "sky")
    assert did == [("looked at", "digits")], "neither here nor on Google"


def test_a_mount_from_the_home_of_nobody_is_an_obstacle(tmp_path: Path):
    spec = load(str(real(tmp_path)), ['file_mounts={"~/data": "~no-such-user/x"}'])
    assert "a home folder that is unknown" in "".join(obstacle.text for obstacle in rent_obstacles(spec))
