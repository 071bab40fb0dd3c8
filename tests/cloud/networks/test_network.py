"""The network files: their values, and that missing ones are never guessed."""

from __future__ import annotations

import pytest

from cloud.networks import Network, NetworkError, network_names

US, EU = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"
ASIA, AUS = "gcp/asia-east1/asia-east1-a", "gcp/australia-southeast1/australia-southeast1-b"


@pytest.fixture(scope="module")
def network():
    return Network.load("study-2023-04")


@pytest.mark.parametrize(
    ("source", "target", "rtt_ms", "mbps"),
    [
        (US, EU, 103.1, 210),
        (EU, US, 103.1, 214.5),
        (US, US, 0.7, 6904),
        (AUS, US, 176.0, 119.3),
        (US, AUS, 176.2, 117),
        (EU, AUS, 272.0, 69.3),
        (ASIA, AUS, 131.5, 163.1),
        (US, "aws/us-west-2/us-west-2a", 15.3, 1800),
        ("azure/southcentralus", US, 51, 500),
    ],
)
def test_a_path_is_what_the_study_measured(network, source, target, rtt_ms, mbps):
    path = network.path(source, target)
    assert path.rtt_s == pytest.approx(rtt_ms / 1e3)
    assert path.stream_bps == pytest.approx(mbps * 1e6)
    assert "2306.03163" in path.source


def test_two_zones_of_a_region_are_one_place_and_two_regions_are_not(network):
    assert network.path("gcp/us-central1/us-central1-a", "gcp/us-central1/us-central1-f").rtt_s == 0.0007
    with pytest.raises(NetworkError, match=r"gcp/us-central1.*gcp/us-west1.*in one region"):
        network.path("gcp/us-central1", "gcp/us-west1")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (EU, "aws/us-west-2", r"gcp/europe-west1/.*aws/us-west-2.*no such row"),
        ("aws/us-west-2", "aws/us-west-2", "no round trip published"),
        (US, "moon/tranquility", "no measurement at 'moon/tranquility'"),
    ],
)
def test_an_unknown_pair_is_an_error_with_its_names(network, source, target, says):
    with pytest.raises(NetworkError, match=says):
        network.path(source, target)


def test_the_largest_window_is_what_a_default_kernel_gave_the_long_paths(network):
    long_paths = [network.path(a, b).window_bytes for a, b in ((US, EU), (US, AUS), (EU, AUS), (ASIA, AUS))]
    assert all(2.3e6 < window < 2.9e6 for window in long_paths)
    assert network.window_bytes() >= max(long_paths)


def test_the_other_clouds_and_own_machines_have_a_network_that_says_what_is_assumed():
    hybrid, own = Network.load("study-2023-04-hybrid"), "onprem/eu-rtx8000"
    there, back = hybrid.path(own, EU), hybrid.path(EU, own)
    assert (there.stream_bps, there.assumed) == (454.6e6, False)
    assert there.rtt_s == pytest.approx(0.01673)
    assert (back.stream_bps, back.rtt_s, back.assumed) == (there.stream_bps, there.rtt_s, True)
    assert hybrid.path("aws/us-west-2", "aws/us-west-2").rtt_s == pytest.approx(0.00015)
    study = Network.load("study-2023-04")
    assert hybrid.path(US, EU) == study.path(US, EU)
    assert all(path.source for path in hybrid.paths.values())
    assert not any(path.assumed for path in study.paths.values())
    assert (
        sum(path.assumed for path in hybrid.paths.values()) == 8
    )  # six ways back, and the A10s' way to the store


def test_a_wrong_name_gets_the_nearest():
    assert network_names() == ["study-2023-04", "study-2023-04-hybrid"]
    with pytest.raises(NetworkError, match="did you mean 'study-2023-04'"):
        Network.load("study-2023-4")
