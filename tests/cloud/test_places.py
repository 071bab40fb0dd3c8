"""Places: every row is well formed; failed lookups list the alternatives."""

import pytest

from cloud.places import PlaceError, continent, expand, find, nearest, places


def test_rows_are_unique_and_complete():
    seen = [place.location for place in places()]
    assert len(seen) == len(set(seen))
    assert {place.continent for place in places()} == {"US", "EU", "ASIA", "AUS", "SA"}
    for place in places():
        assert find(place.location) == place
        assert place.city


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("gcp/us-central1/us-central1-a", "US"),
        ("gcp/europe-west1", "EU"),
        ("gcp/asia-east1/asia-east1-a", "ASIA"),
        ("gcp/australia-southeast1/australia-southeast1-a", "AUS"),
        ("aws/us-east-1/us-east-1b", "US"),
        ("azure/westeurope", "EU"),
        ("b2/us-west-1", "US"),
    ],
)
def test_continents(location, where):
    assert continent(location) == where


def test_a_region_is_all_its_zones_in_order():
    zones = [place.zone for place in expand("gcp/europe-west1")]
    assert zones == ["europe-west1-b", "europe-west1-c", "europe-west1-d"]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (
            "gpc/us-central1",
            "'gpc' is not a cloud we know (gcp, aws, azure, lambda, b2, r2, onprem); did you mean 'gcp'?",
        ),
        ("gcp/us-centrl1/us-central1-a", "'us-centrl1' is not a region of gcp; did you mean 'us-central1'?"),
        ("gcp/europe-west1/europe-west1-a", "'europe-west1-a' is not a zone of gcp/europe-west1 (there are"),
        ("azure/eastus/1", "azure/eastus has no zones to choose from; write 'azure/eastus'"),
        ("gcp", "write cloud/region/zone"),
        ("gcp//us-central1-a", "write cloud/region/zone"),
        ("gcp/us-central1/us-central1-a/x", "write cloud/region/zone"),
        ("gcp/zzzzzz", "there are us-central1"),
    ],
)
def test_what_does_not_exist(location, said):
    with pytest.raises(PlaceError) as caught:
        expand(location)
    assert said in str(caught.value)


def test_nearest_ignores_distant_words():
    assert nearest("qqqq", ["gcp", "aws"]) == ""
    assert nearest("GCP", ["gcp", "aws"]) == "; did you mean 'gcp'?"
