"""Which checkpoints are there, and what is wrong with the others: pure functions of names, sizes and manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST, parse_name
from experiments.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A checkpoint, or the remains of one. It is complete if `problem` is None; then it has a manifest."""

    name: str
    epoch: int
    vm: str
    manifest: Manifest | None
    problem: CheckpointError | None
    bytes: int  # of the files that its manifest names; without a manifest, of all its objects


def examine(
    name: str, where: str, run_id: str, sizes: Mapping[str, int], manifest_text: str | None
) -> Listed:
    """Judge a checkpoint by the sizes of its files (by relative name) and the text of its manifest.

    `where`: URL or path of the checkpoint; `run_id`: the run below whose prefix it was found.
    """
    parsed = parse_name(name)
    assert parsed is not None
    manifest: Manifest | None = None
    problem: CheckpointError | None = None
    try:
        if manifest_text is None:
            raise CheckpointError(
                "incomplete", f"{where} has no {MANIFEST}: its upload did not finish, or is going on"
            )
        manifest = Manifest.from_json(manifest_text, f"{where}/{MANIFEST}")
        _compare(manifest, name, where, run_id, sizes)
    except CheckpointError as error:
        problem = error
    size_bytes = sum(sizes.values()) if manifest is None else manifest.size_bytes
    return Listed(name, *parsed, manifest, problem, size_bytes)


def newest_first(found: Sequence[Listed]) -> tuple[Listed, ...]:
    """Sort by epoch, then by the time at which they were made, then by name."""
    return tuple(sorted(found, key=_age, reverse=True))


def older_than(name: str, listed: Sequence[Listed]) -> str | None:
    """The newest complete checkpoint that comes after `name` in a list that is sorted newest first.

    A checkpoint that is not in the list has the place of its epoch.
    """
    names, parsed = [one.name for one in listed], parse_name(name)
    start = (
        names.index(name) + 1
        if name in names
        else sum(parsed is not None and one.epoch >= parsed[0] for one in listed)
    )
    later = listed[start:]
    return next((one.name for one in later if one.problem is None), None)


def removable(listed: Sequence[Listed], keep: int) -> tuple[str, ...]:
    """Checkpoints that retention deletes: complete ones beyond the newest `keep`, and remains that are older than the
    newest complete one.

    What another run or a newer version of orch stored is never deleted. Remains of the newest epochs may be uploads that
    are going on. `listed`: newest first.
    """
    complete = [one for one in listed if one.problem is None]
    surplus = {one.name for one in complete[max(1, keep) :]}
    newest = complete[0].epoch if complete else -1
    remains = {
        one.name
        for one in listed
        if one.problem is not None and one.problem.code in ("incomplete", "corrupt") and one.epoch < newest
    }
    return tuple(one.name for one in listed if one.name in surplus | remains)


def _age(one: Listed) -> tuple[int, float, str]:
    return one.epoch, one.manifest.made_at_s if one.manifest is not None else 0.0, one.name


def _compare(manifest: Manifest, name: str, where: str, run_id: str, sizes: Mapping[str, int]) -> None:
    if manifest.run_id != run_id or manifest.name != name:
        raise CheckpointError(
            "foreign", f"{where} has the manifest of {manifest.name} of run {manifest.run_id}, not its own"
        )
    for path, file in sorted(manifest.files.items()):
        if path not in sizes:
            raise CheckpointError("incomplete", f"{where} lacks its file {path}")
        if sizes[path] != file.size_bytes:
            what = "is cut" if sizes[path] < file.size_bytes else "is too long"
            raise CheckpointError(
                "corrupt",
                f"{where}/{path} {what}: it has {sizes[path]} of {file.size_bytes} bytes",
            )
