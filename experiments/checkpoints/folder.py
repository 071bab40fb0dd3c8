"""A run's checkpoints in a folder of this machine, in the same layout as in the object store."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST, is_file_name, parse_name
from experiments.checkpoints.listing import Listed, examine, newest_first
from experiments.checkpoints.manifest import MAX_BYTES


class CheckpointFolder:
    """The checkpoints in `folder`, each in a folder of its name. Raises OSError for what cannot be read."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder, self.run_id = folder, run_id

    def list(self) -> tuple[Listed, ...]:
        """All checkpoints and remains, newest first. Files are compared by size, not by content."""
        found = (path for path in self.folder.iterdir() if path.is_dir() and parse_name(path.name))
        return newest_first([self._examine(path) for path in found])

    def where(self, name: str, file: str = "") -> str:
        """Path of a checkpoint or of its file."""
        return str(self.folder / name / file)

    def open(self, name: str, file: str, size_bytes: int, start_bytes: int = 0) -> BinaryIO:
        """Open a file of a checkpoint from a byte on. Raises CheckpointError for a missing file or another size."""
        path = self.folder / name / file
        try:
            opened = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise CheckpointError("incomplete", f"{path} does not exist") from error
        if (size := path.stat().st_size) != size_bytes:
            opened.close()
            raise CheckpointError("corrupt", f"{path} has {size} bytes instead of {size_bytes}")
        opened.seek(start_bytes)
        return opened  # type: ignore[return-value]

    def _examine(self, folder: Path) -> Listed:
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        sizes = {
            name: path.stat().st_size
            for name, path in files.items()
            if name == MANIFEST or is_file_name(name)
        }
        readable = sizes.get(MANIFEST, MAX_BYTES + 1) <= MAX_BYTES
        text = files[MANIFEST].read_text(encoding="utf-8", errors="replace") if readable else None
        return examine(folder.name, str(folder), self.run_id, sizes, text)
