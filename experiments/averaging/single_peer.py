"""`plain: true`: one peer in torch's own loop, without rounds."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.averaging.records import AveragingMethod, Problem, Schedule, Setting


def _problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    if setting.peers is not None and setting.peers > 1:
        yield (
            ("swarm", "plain"),
            f"a plain loop averages with nobody, and there are {setting.peers} peers; remove it, or keep one peer",
        )
    for schedule in method.schedules:
        if schedule.hides_rounds:
            yield (
                ("swarm", schedule.key),
                "a plain loop has no communication to overlap; remove it, or remove swarm.plain",
            )


SINGLE_PEER = Schedule(
    key="plain",
    name="true",
    meaning="one peer in a plain torch loop, which averages with nobody",
    problems=_problems,
    has_rounds=False,
    optimizer="PlainOptimizer",
)
