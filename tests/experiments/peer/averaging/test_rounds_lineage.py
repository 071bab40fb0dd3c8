"""Peers that missed a round or took part in another one are detected in the next group; pure."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.averaging.lineage import (
    FIRST,
    PeerVersion,
    after_round,
    astray,
    expected_peers,
    extended,
    parse_version,
    patient,
)
from experiments.peer.training.parameter_digest import SAMPLED, parameters_sha, write_sample

PEERS = st.integers(2, 6)


class Swarm:
    """Peers that take part in rounds; a peer's parameters are the set of its rounds."""

    def __init__(self, peers: int) -> None:
        self.epoch, self.lineage = [0] * peers, [FIRST] * peers
        self.truth: list[tuple[int, ...]] = [()] * peers  # the rounds its parameters have been through
        self.rounds = 0

    def version(self, peer: int) -> PeerVersion:
        return PeerVersion(self.epoch[peer], self.lineage[peer], f"{peer}/{self.rounds}")

    def round(self, group: list[int], fails_for: set[int]) -> None:
        """A round: peers that are astray load the state of one that is not; those for which it fails stay behind."""
        self.rounds += 1
        versions = {peer: self.version(peer) for peer in group}
        good = [peer for peer in group if not astray(versions, versions[peer])]
        averaged = [peer for peer in good if peer not in fails_for]
        for peer in averaged:
            self.lineage[peer] = after_round(versions, versions[peer])
            self.epoch[peer] += 1
            self.truth[peer] = (*self.truth[peer], self.rounds)
        for peer in set(group) - set(good):
            if averaged:
                donor = averaged[0]
                self.epoch[peer], self.lineage[peer] = self.epoch[donor], self.lineage[donor]
                self.truth[peer] = self.truth[donor]


@given(st.data(), PEERS)
def test_equal_lineages_mean_equal_parameters(data: st.DataObject, peers: int) -> None:
    swarm = Swarm(peers)
    for _ in range(data.draw(st.integers(1, 8))):
        group = data.draw(st.sets(st.integers(0, peers - 1), min_size=1))
        swarm.round(sorted(group), data.draw(st.sets(st.sampled_from(sorted(group)))))
        for one in range(peers):
            for other in range(peers):
                same = (swarm.epoch[one], swarm.lineage[one]) == (swarm.epoch[other], swarm.lineage[other])
                assert same == (swarm.truth[one] == swarm.truth[other])
    everybody = list(range(peers))
    swarm.round(everybody, set())
    assert len(set(swarm.truth)) == 1  # one whole round heals every fork


@given(
    st.dictionaries(
        st.integers(), st.builds(PeerVersion, st.integers(0, 9), st.text("ab", max_size=1), st.text())
    )
)
def test_some_member_is_never_astray_and_order_does_not_matter(
    group: dict[int, PeerVersion],
) -> None:
    if not group:
        return
    again = dict(reversed(group.items()))
    fine = [peer for peer, version in group.items() if not astray(group, version)]
    assert fine
    assert {group[peer].epoch for peer in fine} == {max(version.epoch for version in group.values())}
    assert len({after_round(group, group[peer]) for peer in fine}) == 1
    for version in group.values():
        assert astray(group, version) == astray(again, version)
        assert after_round(group, version) == after_round(again, version)


def test_majority_of_newest_epoch_wins() -> None:
    group = {
        name: PeerVersion(4, lineage, name) for name, lineage in zip("abc", ("x", "y", "x"), strict=True)
    }
    assert [astray(group, version) for version in group.values()] == [False, True, False]
    group["d"] = PeerVersion(5, "z", "d")
    assert [astray(group, version) for version in group.values()] == [True, True, True, False]


def group(*versions: tuple[int, int]) -> dict[int, PeerVersion | None]:
    """A group whose members know the given numbers of peers and are at the given attempts."""
    return {i: PeerVersion(4, "x", str(i), peers, attempt) for i, (peers, attempt) in enumerate(versions)}


def test_partial_group_is_refused_at_first_and_a_minority_always() -> None:
    assert expected_peers(group((2, 1), (4, 1))) == 4  # one of them knows of two others
    assert expected_peers(group((2, 1), (2, 1))) is None
    # a peer that does not know the other counts only itself
    assert expected_peers(group((1, 1), (1, 1))) is None
    assert expected_peers(group((4, 2), (4, 1))) == 4  # the other two may be a group as well
    assert expected_peers(group((4, 2), (4, 1), (4, 2))) is None  # a missing peer is waited for only once
    assert expected_peers(group((3, 2), (3, 2))) is None
    assert expected_peers(group((2, 7))) == 2
    assert expected_peers({0: None, 1: None}) is None


@given(st.integers(1, 9), st.data())
def test_two_separate_groups_are_never_both_accepted(peers: int, data: st.DataObject) -> None:
    one = data.draw(st.sets(st.integers(0, peers - 1)))
    other = (
        data.draw(st.sets(st.sampled_from(sorted(set(range(peers)) - one)))) if len(one) < peers else set()
    )
    attempts = data.draw(st.lists(st.integers(1, 3), min_size=peers, max_size=peers))
    accepted = [
        members
        for members in (one, other)
        if members and expected_peers(group(*((peers, attempts[peer]) for peer in members))) is None
    ]
    assert len(accepted) <= 1


def test_invalid_versions_are_ignored() -> None:
    assert parse_version(PeerVersion(3, "x", "n", 8, 2, 1).as_list()) == PeerVersion(3, "x", "n", 8, 2, 1)
    for nonsense in (
        None,
        3,
        [3, "x", "n"],
        [3, "x", "n", 1, 1],
        ["3", "x", "n", 1, 1, 0],
        [3, None, "n", 1, 1, 0],
        [3, "x", "n", 1, "1", 0],
        [3, "x", "n", 1, 1, None],
    ):
        assert parse_version(nonsense) is None
    assert not astray({"a": None, "b": None}, PeerVersion(0, FIRST, "n"))


def test_round_is_patient_after_a_member_lost_an_attempt() -> None:
    def versions(*lost: int) -> dict[int, PeerVersion | None]:
        return {i: PeerVersion(4, "x", str(i), lost=one) for i, one in enumerate(lost)}

    assert not patient(versions(0, 0, 0))
    assert patient(versions(0, 1, 0))
    assert not patient({0: None})


def test_skipped_round_changes_the_lineage() -> None:
    assert extended(FIRST, "passed over") == extended(FIRST, "passed over") != FIRST


def test_sha_is_computed_from_float16_values() -> None:
    one = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert parameters_sha(one) == parameters_sha([tensor + 1e-5 for tensor in one])
    assert parameters_sha(one) != parameters_sha([tensor + 1e-2 for tensor in one])


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=8))
def test_a_sample_is_spread_evenly_over_all_parameters(sizes: list[int]) -> None:
    flat = torch.arange(sum(sizes), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parameters.f32"
        write_sample(path, flat.split(sizes))
        sampled = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)
    assert len(sampled) <= SAMPLED
    assert torch.equal(sampled, flat[:: -(-len(flat) // SAMPLED)])
