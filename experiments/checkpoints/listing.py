"""Which checkpoints are there, and what is wrong with the others: pure functions of names, sizes and manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST, parse_name
from experiments.checkpoints.manifest import MAX_BYTES, Manifest, corrupt


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A checkpoint, or the remains of one. It is complete if `problem` is None; then it has a manifest."""

    name: str
    epoch: int
    vm: str
    manifest: Manifest | None
    problem: CheckpointError | None
    bytes: int  # of the files that its manifest names; without a manifest, of all its objects

    @property
    def unfinished(self) -> bool:
        """Whether it never was complete: its upload did not finish, or is going on."""
        return self.problem is not None and self.problem.code == "incomplete" and self.manifest is None


def examine(
    name: str, where: str, run_id: str, sizes: Mapping[str, int], manifest_text: str | None
) -> Listed:
    """Judge a checkpoint by the sizes of its files (by relative name) and the text of its manifest.

    The text of a manifest of more than `MAX_BYTES` need not be read. `where`: URL or path of the checkpoint; `run_id`: the
    run below whose prefix it was found.
    """
    parsed = parse_name(name)
    assert parsed is not None
    manifest: Manifest | None = None
    problem: CheckpointError | None = None
    try:
        if (size := sizes.get(MANIFEST, 0)) > MAX_BYTES:
            raise corrupt(f"{where}/{MANIFEST}", f"it has {size} bytes, more than {MAX_BYTES}")
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


def removable(listed: Sequence[Listed], keep: int, stored: str | None = None) -> tuple[str, ...]:
    """Checkpoints that retention deletes: complete ones beyond the newest `keep`, and remains of epochs before that of
    `stored`.

    `stored`: the checkpoint that was just stored, default: the newest complete one. It is kept, and so is what was made after
    it. Greater epochs that were made before it do not count: peers that went on from an older one could not use them. What
    another run or a newer version of orch stored is never deleted. Remains of the newest epochs may be uploads that are going
    on. `listed`: newest first.
    """
    complete = [one for one in listed if one.problem is None]
    newest = just_stored(listed, stored)
    if newest is None:
        return ()
    counted = [one for one in complete if one.epoch <= newest.epoch or _made_at_s(one) > _made_at_s(newest)]
    surplus = {
        one.name
        for one in counted[max(1, keep) :]
        if one is not newest and _made_at_s(one) <= _made_at_s(newest)
    }
    remains = {
        one.name
        for one in listed
        if one.problem is not None
        and one.problem.code in ("incomplete", "corrupt")
        and one.epoch < newest.epoch
    }
    return tuple(one.name for one in listed if one.name in surplus | remains)


def just_stored(listed: Sequence[Listed], name: str | None) -> Listed | None:
    """The complete checkpoint of this name, or else the newest complete one."""
    complete = [one for one in listed if one.problem is None]
    return next((one for one in complete if one.name == name), complete[0] if complete else None)


def _made_at_s(one: Listed) -> float:
    return one.manifest.made_at_s if one.manifest is not None else 0.0


def _age(one: Listed) -> tuple[int, float, str]:
    return one.epoch, _made_at_s(one), one.name


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
