"""Translates the words for clouds, places, GPUs and models in host names, file names and indexes (`words.csv`)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cloud.places import PlaceError, find
from experiments.catalog import models

UNKNOWN = "unknown"
_DATA = Path(__file__).with_name("words.csv")


@dataclass(frozen=True, slots=True)
class Where:
    """A place derived from a name: the location (`cloud/region`, or unknown), its cloud, and a remark."""

    location: str
    cloud: str | None
    remark: str  # "", or what is assumed or unknown


@cache
def _words(kind: str) -> dict[str, tuple[str, str]]:
    """{word: (value, note)} of one kind."""
    with _DATA.open(newline="", encoding="utf-8") as file:
        return {r["word"]: (r["value"], r["note"]) for r in csv.DictReader(file) if r["kind"] == kind}


def _tokens(name: str) -> list[str]:
    return [token for token in re.split(r"[^a-z0-9]+", name.lower()) if token]


def _first(kind: str, name: str) -> str | None:
    """The value of the first known word, or pair of words written as one (`RTX 8000`, `DGX-2`)."""
    known, tokens = _words(kind), _tokens(name)
    for k, token in enumerate(tokens):
        for word in ("".join(tokens[k : k + 2]), token):
            if word in known:
                return known[word][0]
    return None


def where(name: str) -> Where:
    """Derive the place from an index's location (`GC-US`, `gcp/us-central1`) or a host's name (`gc-eu-t4-1`).

    Without a continent in the name the location is `unknown`, but its cloud may be known.
    """
    if "/" in name:
        try:
            find(name)
        except PlaceError as error:
            return Where(UNKNOWN, None, f"'{name}' is not on the map ({error})")
        return Where(name, name.split("/")[0], "")
    cloud, continent = _first("cloud", name), _first("continent", name)
    region = _words("region").get(f"{cloud} {continent}")
    if cloud is None or continent is None or region is None:
        return Where(UNKNOWN, cloud, f"'{name}' does not give its region")
    remark = f"'{name}' is assumed to be {cloud}/{region[0]}" if region[1] == "assumed" else ""
    return Where(f"{cloud}/{region[0]}", cloud, remark)


def accelerator(name: str) -> str | None:
    """Return `T4:1` from a GPU's or a host's name; None if it contains no known GPU."""
    return _first("gpu", name)


def model_name(name: str) -> str | None:
    """Return the name in models.csv for any spelling (`torchvision.models.convnext_large`); None: unknown."""
    plain = "".join(_tokens(name))
    known = {word: value for word, (value, _) in _words("model").items()}
    known |= {"".join(_tokens(one)): one for one in models()}
    inside = [word for word in known if word in plain]
    return known[max(inside, key=len)] or None if inside else None


def host_part(rest: str) -> tuple[str, str]:
    """Split the rest of a file name such as `roberta_mlm_xlm-gc-t4-1` into (the part before the host, the host).

    The host starts at the first part that names a cloud, otherwise at a GPU after a model, otherwise at the beginning.
    """
    clouds = _words("cloud")
    parts = rest.split("-")
    for k, part in enumerate(parts):
        if part.lower() in clouds:
            before = parts[:k]
            if part.lower() == "prem" and before and before[-1].lower() == "on":
                before, k = before[:-1], k - 1
            return "-".join(before), "-".join(parts[k:])
    for k in range(1, len(parts)):
        if model_name("-".join(parts[:k])) and accelerator(parts[k]) and not model_name(parts[k]):
            return "-".join(parts[:k]), "-".join(parts[k:])
    return "", rest
