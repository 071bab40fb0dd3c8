"""What goes wrong between us and SkyPilot, with a stand-in for SkyPilot itself: nothing is left of it, nothing is rented twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.provider import (
    AmbiguousError,
    EndedError,
    LaunchRequest,
    NoCapacityError,
    Offer,
    ProviderError,
    TransientError,
)
from cloud.sky import SkyCloud, launching, provider, records
from cloud.sky.names import cluster_name
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import server
from tests.cloud.fake_sky import ClusterDoesNotExist, FakeSky, Resources

WHERE = "gcp/us-central1/us-central1-a"
OFFER = Offer(WHERE, "n1", "T4:1", True, Decimal("0.2"), "a book")
REQUEST = LaunchRequest("r-a-0", OFFER, "programs:stay", {}, max_usd_per_h=Decimal("0.25"))


class ConnectionResetError_(Exception):
    """SkyPilot's server was lost under a call."""


ConnectionResetError_.__name__ = "ConnectionResetError"


@pytest.fixture
def sky(monkeypatch: pytest.MonkeyPatch) -> FakeSky:
    made = FakeSky()
    made.install(monkeypatch)
    monkeypatch.setattr(server, "ensure", lambda home: None)
    monkeypatch.setattr(server, "healthy", lambda: True)
    monkeypatch.setattr(server, "claim", lambda home, run: None)
    monkeypatch.setattr(server, "leave", lambda home, run: None)
    monkeypatch.setattr(launching, "ship_folder", lambda folder, home, request: (folder / "x.ship", "key"))
    monkeypatch.setattr(launching.aws_role, "ensure", lambda buckets, written: "role")
    monkeypatch.setattr("cloud.sky.skypilot.sdk.settings", lambda own, role: {})
    monkeypatch.setattr("cloud.sky.skypilot.sdk.removal", lambda own, mounts: "")
    monkeypatch.setattr(launching.time, "sleep", lambda _s: None)
    monkeypatch.setattr(provider.time, "sleep", lambda _s: None)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "runs" / "r"
    made.mkdir(parents=True)
    return made


def once(do: Callable[[], None]) -> Callable[[], None]:
    """Done at the first call only."""
    left = [do]
    return lambda: left.pop()() if left else None


def lost() -> None:
    raise ConnectionResetError_("connection reset by peer")


def record(run: Path, vm: str = "r-a-0") -> VmRecord:
    found = records.read(run / "sky", vm)
    assert found is not None
    return found


class ResourcesUnavailableError(Exception):
    """Like the class in `sky.exceptions`."""


def refuse(sky: FakeSky) -> None:
    """Fail every launch, as SkyPilot does: without a reason."""
    for request in sky.requests.values():
        request.status = "RequestStatus.FAILED"
    raise ResourcesUnavailableError("Failed to acquire resources in us-west-2a")


CONFLICT = """\
D 11-27 16:43:33.523 PID=229 provisioner.py:361] botocore.exceptions.ClientError: An error occurred \
(InvalidPermission.Duplicate) when calling the AuthorizeSecurityGroupIngress operation: The specified rule already exists
"""


def test_a_launch_that_met_another_one_in_a_new_region_is_repeated(sky: FakeSky, run: Path):
    """SkyPilot fails the second of two launches that create the region's firewall rules at the same moment."""
    sky.provision_log = CONFLICT
    sky.on["get launch"] = once(lambda: refuse(sky))
    SkyCloud(run).request(REQUEST)
    assert sky.launched == [cluster_name("r-a-0")] * 2
    assert list(sky.clusters) == [cluster_name("r-a-0")]


def test_a_launch_that_always_meets_another_one_is_an_error_that_passes(sky: FakeSky, run: Path):
    sky.provision_log = CONFLICT
    sky.on["get launch"] = lambda: refuse(sky)
    with pytest.raises(TransientError, match=r"setting up the same region.*specified rule already exists"):
        SkyCloud(run).request(REQUEST)
    assert not sky.clusters


def test_a_refusal_that_skypilot_does_not_explain_is_not_repeated(sky: FakeSky, run: Path):
    sky.on["get launch"] = lambda: refuse(sky)
    with pytest.raises(NoCapacityError, match="Failed to acquire resources in us-west-2a"):
        SkyCloud(run).request(REQUEST)
    assert len(sky.launched) == 1


def test_a_vm_is_rented_seen_and_ended(sky: FakeSky, run: Path):
    cloud = SkyCloud(run)
    cloud.request(REQUEST)
    cloud.request(REQUEST)
    assert sky.launched == ["r-a-0"]
    assert [(o.vm, o.location, o.usd_per_h) for o in cloud.observe()] == [("r-a-0", WHERE, Decimal("0.2"))]
    cloud.terminate("r-a-0")
    assert sky.clusters == {}
    cloud.close()
    with pytest.raises(EndedError):
        cloud.request(REQUEST)


# Closing


@pytest.mark.parametrize("listing", [2, 3])
def test_anything_listed_during_close_is_reported_as_left(sky: FakeSky, run: Path, listing: int):
    """A cluster without a record that is missing in the first of the two lists, which lists may be."""
    cloud = SkyCloud(run)
    cloud.request(REQUEST)
    cloud.terminate("r-a-0")
    appears = sky.lists + listing
    back = Resources(WHERE, labels={"orch-run": "r"})
    sky.on[f"list {appears}"] = lambda: sky.clusters.update({"r-a-9": back})
    with pytest.raises(TransientError, match=r"not proven to be gone: .*r-a-9"):
        cloud.close()
    assert sky.lists == appears or listing == 2
    assert not (run / "sky" / "proven").exists()
    sky.clusters.clear()
    cloud.close()
    assert (run / "sky" / "proven").exists()


def test_a_close_whose_lists_fail_proves_nothing(sky: FakeSky, run: Path):
    cloud = SkyCloud(run)
    cloud.request(REQUEST)

    def failing() -> None:
        raise RuntimeError("boom")

    before = sky.lists
    for n in range(before + 1, before + 12):
        sky.on[f"list {n}"] = failing
    with pytest.raises(TransientError, match="boom"):
        cloud.close()
    assert sky.clusters == {}, "it is ended all the same"
    assert not (run / "sky" / "proven").exists()


# Launches under way


def test_ending_a_vm_whose_launch_skypilot_has_only_begun_cancels_that_launch(sky: FakeSky, run: Path):
    """SkyPilot does not know the cluster yet and would create it later."""
    begun: list[str] = []

    def other_process() -> None:  # while we wait for the launch
        SkyCloud(run).terminate("r-a-0")
        begun.extend(a.status for a in sky.requests.values() if a.name == "sky.launch")

    sky.on["get launch"] = once(other_process)
    with pytest.raises(ProviderError):
        SkyCloud(run).request(REQUEST)
    assert begun == ["RequestStatus.CANCELLED"]
    sky.finish()
    assert sky.clusters == {}
    assert record(run).end_state == "terminated"


def test_closing_a_run_cancels_the_launches_under_way(sky: FakeSky, run: Path):
    sky.on["get launch"] = once(lambda: SkyCloud(run).close())
    with pytest.raises(ProviderError):
        SkyCloud(run).request(REQUEST)
    sky.finish()
    assert sky.clusters == {}


@pytest.mark.parametrize("what", ["ending", "closed"])
def test_a_launch_that_was_ended_meanwhile_is_not_kept(sky: FakeSky, run: Path, what: str):
    """Who ended it found nothing at SkyPilot to be ended: only the launch itself can undo what it made."""

    def asked_to_end() -> None:
        if what == "ending":
            records.update(run / "sky", "r-a-0", ending=True)
        else:
            (run / "sky" / "closed").touch()

    sky.on["get launch"] = asked_to_end
    with pytest.raises(TransientError, match="it was ended while it was being launched"):
        SkyCloud(run).request(REQUEST)
    assert sky.clusters == {}
    assert record(run).end_state == "terminated"


def test_an_end_while_the_role_is_made_is_noticed_before_the_launch_is_sent(
    sky: FakeSky, run: Path, monkeypatch: pytest.MonkeyPatch
):
    """IAM may be slower than an ending waits for a launch that was sent: until the role is there, none was."""
    asking: list[bool] = []

    def ended_meanwhile(buckets: object, written: object) -> str:
        asking.append(record(run).asking)
        (run / "sky" / "closed").touch()
        return "role"

    monkeypatch.setattr(launching.aws_role, "ensure", ended_meanwhile)
    on_aws = replace(OFFER, location="aws/us-west-2/us-west-2a")
    with pytest.raises(TransientError, match="it was ended while it was being launched"):
        SkyCloud(run).request(replace(REQUEST, offer=on_aws))
    assert (sky.launched, asking) == ([], [False])


@pytest.mark.parametrize("at", ["get launch", "launch"])
def test_a_server_that_is_lost_under_a_launch_makes_no_second_vm(sky: FakeSky, run: Path, at: str):
    sky.on[at] = once(lost)
    SkyCloud(run).request(REQUEST)
    assert sky.launched == ["r-a-0"]
    assert list(sky.clusters) == ["r-a-0"]


def test_a_launch_of_a_controller_that_died_is_waited_for(sky: FakeSky, run: Path):
    def killed() -> None:
        raise KeyboardInterrupt

    sky.on["get launch"] = once(killed)
    with pytest.raises(KeyboardInterrupt):
        SkyCloud(run).request(REQUEST)
    SkyCloud(run).request(REQUEST)
    assert sky.launched == ["r-a-0"]
    assert record(run).launched


def test_a_launch_that_failed_is_cleaned_up_and_may_be_asked_again(sky: FakeSky, run: Path):
    def half() -> None:
        sky.clusters["r-a-0"] = Resources(WHERE, labels={"orch-run": "r"})
        raise RuntimeError("Failed to run setup commands on an instance.")

    sky.on["get launch"] = half
    with pytest.raises(TransientError):
        SkyCloud(run).request(REQUEST)
    assert sky.clusters == {}
    assert record(run).end_state == "terminated", "it may have been billed"


def test_what_cannot_be_cleaned_up_is_ambiguous(sky: FakeSky, run: Path):
    def fails() -> None:
        raise RuntimeError("boom")

    sky.on["get launch"] = fails
    sky.on["get status"] = fails
    with pytest.raises(AmbiguousError, match="whether anything is left of it is unknown"):
        SkyCloud(run).request(REQUEST)


# Prices


def test_unknown_price_fails_any_ceiling(sky: FakeSky, run: Path):
    sky.rented_usd_per_h = None
    with pytest.raises(NoCapacityError, match="its price is unknown and the plan's ceiling is"):
        SkyCloud(run).request(REQUEST)
    assert sky.clusters == {}


def test_vm_more_expensive_than_the_catalog_is_ended(sky: FakeSky, run: Path):
    sky.rented_usd_per_h = 0.26
    with pytest.raises(NoCapacityError, match=r"it costs \$0.26/h"):
        SkyCloud(run).request(REQUEST)
    assert sky.clusters == {}
    assert record(run).too_dear


# Ending


@pytest.mark.parametrize("fault", ["lost", "gone"])
def test_a_vm_is_ended_whatever_happens_under_the_call(sky: FakeSky, run: Path, fault: str):
    cloud = SkyCloud(run)
    cloud.request(REQUEST)

    def gone() -> None:
        sky.clusters.clear()
        raise ClusterDoesNotExist(cluster_name("r-a-0"))

    sky.on["get down"] = once(lost if fault == "lost" else gone)
    cloud.terminate("r-a-0")
    assert sky.clusters == {}
    assert record(run).end_state == "terminated"


def test_failed_termination_is_not_reported_as_success(sky: FakeSky, run: Path):
    cloud = SkyCloud(run)
    cloud.request(REQUEST)

    def fails() -> None:
        raise RuntimeError("boom")

    sky.on["get down"] = fails
    with pytest.raises(ProviderError, match="boom"):
        cloud.terminate("r-a-0")
    assert record(run).end_state == ""
    with pytest.raises(TransientError, match="r-a-0"):
        cloud.close()
