"""`plain: true`: a single peer in a plain torch loop, without rounds."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.averaging.records import AveragingMethod, Problem, Schedule, Setting


def _problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    if setting.peers is not None and setting.peers > 1:
        yield (
            ("swarm", "plain"),
            f"a plain loop does not average, but there are {setting.peers} peers; remove the key, or keep one peer",
        )
    for schedule in method.schedules:
        if schedule.overlaps_rounds:
            yield (
                ("swarm", schedule.key),
                "a plain loop has no communication to overlap; remove the key, or remove swarm.plain",
            )


SINGLE_PEER = Schedule(
    key="plain",
    name="true",
    meaning="a single peer in a plain torch loop, without averaging",
    problems=_problems,
    has_rounds=False,
    optimizer="PlainOptimizer",
)
