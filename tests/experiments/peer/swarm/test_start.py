"""When a peer may begin: announcements of dead peers, which outlive them by half a minute, do not count."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from hivemind.p2p import PeerID

from experiments.peer.swarm.members import Member
from experiments.peer.swarm.membership import Membership
from experiments.wire.record_keys import generate_identity

NAMES = ("me", "a", "b")
IDS = {name: generate_identity()[1] for name in NAMES}


def membership(*others: tuple[str, str, int], dead: tuple[str, ...] = ()) -> Membership:
    """This peer's knowledge: (name, phase, epoch) of the others, which are announced, and which do not answer."""
    config: Any = SimpleNamespace(run_id="r", vm="me", slot="me", initial_peers=(), dht_timeout_s=1.0)
    made = Membership(cast(Any, None), config, maddr("me"), lambda _: None, subkey=b"")
    made._members = tuple(
        Member(name, name, phase, epoch, maddr(name)) for name, phase, epoch in (("me", "ready", 0), *others)
    )

    def check(ping: bool = False) -> None:
        made._gone = frozenset(PeerID.from_base58(IDS[name]).to_bytes() for name in dead)

    made._read, made._check_connections = lambda _: None, check  # type: ignore[method-assign]
    return made


def maddr(name: str) -> str:
    return f"/ip4/10.0.0.1/tcp/1/p2p/{IDS[name]}"


def begins(made: Membership, expected: int = 2) -> str:
    return made.wait_for_start(expected, 0.3, threading.Event())


def test_a_swarm_that_trains_is_joined():
    made = membership(("a", "training", 3), ("b", "training", 3), dead=("b",))
    assert made.others_train()
    assert made.slots_in("training") == {"a"}
    assert begins(made) == "joined"


def test_a_swarm_that_was_lost_is_not_joined():
    made = membership(("a", "training", 3), ("b", "serving", 3), dead=("a", "b"))
    assert not made.others_train()
    assert begins(made) == "timeout", "nor are they the peers that this one waits for"
    assert begins(membership(("a", "training", 3), ("b", "ready", 0), dead=("a",))) == "ready"


def test_peers_that_began_from_the_same_checkpoint_began_together():
    made = membership(("a", "training", 3))
    made.starts_at(3)
    assert begins(made) == "ready"
    later = membership(("a", "training", 4))
    later.starts_at(3)
    assert begins(later) == "joined"


def test_ready_peers_are_expected_in_the_first_round_only():
    made = membership(("a", "ready", 3))
    assert made.others_training(3) == 0
    made.starts_at(3)
    assert made.others_training(3) == 1
    assert made.others_training(4) == 0
