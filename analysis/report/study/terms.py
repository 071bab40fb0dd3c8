"""The words of the study report that a newcomer does not know, and what they mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from analysis.compare.run_figures import StudyRun

_SERIES = {
    "A": "VMs in one zone, in the US",
    "B": "half of the VMs in the US, half in Europe",
    "C": "VMs on up to four continents",
    "D": "VMs of one cloud or two in the US",
    "E": "an RTX8000 of one's own and cloud VMs",
    "F": "a DGX-2 (8 V100) of one's own and cloud VMs",
}
_FAMILIES = {
    "CV": "computer vision",
    "NLP": "language",
    "ASR": "speech recognition",
}


def terms(runs: Sequence[StudyRun], paper: bool, page: str) -> list[tuple[str, str]]:
    """Return the page's legend: each word of these runs' names and of the figures, with its meaning.

    `paper`: the page also has figures on the paper's basis. `page`: its text; the paper's names of runs are explained
    only where they occur.
    """

    def occurs(word: str) -> bool:
        return re.search(rf"\b{word}\b", page) is not None

    letters = sorted({run.series[:1] for run in runs if run.series.split("-")[0] in _SERIES})
    found = [(letter, f"The paper's series {letter}: {_SERIES[letter]}.") for letter in letters]
    if any(occurs(rf"{letter}-\d") for letter in letters):
        most = max(run.peers for run in runs if run.series[:1] == letters[-1])
        found.append((f"{letters[-1]}-{most}", f"Series {letters[-1]} with {most} VMs."))
    for family, words in _FAMILIES.items():
        models = sorted({run.model for run in runs if run.family == family})
        if models and occurs(family):
            found.append((family, f"{words[:1].upper()}{words[1:]}: {', '.join(models)}."))
    found += [
        (
            "Granularity",
            "Calculation time / communication time. At 10, twice as many VMs are 1.83 times as fast, at 1 only 1.33 times, if a "
            "round takes as long as before.",
        ),
        (
            "One clock",
            "Every rate is samples over the time that passed, for a single GPU and for a swarm; every byte is billed by where "
            "it went.",
        ),
    ]
    if paper:
        found.append(
            (
                "The paper's basis",
                "As the paper computes it: a single GPU by timers around its phases, which miss waits, a swarm by the time that "
                "passed; egress billed by assumed shares.",
            )
        )
    found += [
        ("Lines, arrows", "95 % interval over epochs (n: how many); an arrow: it leaves the figure."),
        (
            "Markers",
            "Filled: from logs or measured; half filled: emulated; hollow, or a star after a name: as printed in the paper. "
            "\u2020: the rate is not by wall clock, so it is not compared.",
        ),
    ]
    return found
