"""Read a user's own files as records: class folders of images, tables, sounds with transcripts, saved datasets."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.datasets.in_order import in_order
from cloud.datasets.verify import IMAGES, SOUNDS, bad_member
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN, Record, fraction_of, safe_key

KINDS = ("images", "table", "audio", "dataset")
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
# Folders (or splits of a saved dataset) that are splits, and what they are here; the first that exists is held out.
_HELDOUT_NAMES = ("heldout", "validation", "valid", "val", "dev", "test")
_LIKE_SPLITS = {TRAIN, "training", *_HELDOUT_NAMES}
# Columns that need not be named with --column.
_USUAL = {
    "txt": ("text", "txt", "sentence", "transcript", "transcription"),
    "cls": ("label", "cls", "class"),
    "jpg": ("image", "img", "jpg"),
    "wav": ("audio", "sound", "wav"),
}
_NEEDS_BYTES = ("jpg", "wav")
_ENCODED = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"RIFF", "wav"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """A sample that has not been read yet. `read` returns its members and raises DataSourceError or OSError."""

    key: str
    where: str  # for messages
    read: Callable[[], Mapping[str, bytes]]
    split: str = ""


@dataclass(slots=True)
class Source:
    """A source in the order in which it is packed, and what its bytes depend on besides the files."""

    kind: str
    items: Sequence[Item] | Iterable[Item]
    classes: list[str] | None = None  # names of the labels, if these are names
    ignored: int = 0  # files that are no samples
    content: str = ""  # digest of the source's files, by which another source of the same name is recognised
    bad: list[str] = field(default_factory=list)  # what was left out, with `skip`

    @property
    def has_splits(self) -> bool:
        return isinstance(self.items, Sequence) and any(item.split for item in self.items)


def open_source(
    path: Path,
    kind: str = "",
    *,
    columns: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    key: str = "",
    seed: int = 0,
) -> Source:
    """Recognise and list a source; no sample is read yet.

    `kind` is one of `KINDS`, "" to recognise it. For tables and datasets, `columns` maps extensions to columns and
    `files` extensions to columns with paths relative to the table; `key` is the column with the samples' names (else
    they are numbered). Samples are ordered by a hash of their key and `seed`, so that each shard is a mixture. Raises
    DataSourceError.
    """
    if not path.exists():
        raise DataSourceError(f"{path} does not exist; correct the path of the source")
    kind = kind or _recognise(path)
    if kind in ("images", "audio") and (columns or files or key):
        raise DataSourceError(
            f"{path} is packed as {kind}, which has no columns; leave out --column, --file and --key"
        )
    if kind == "images":
        source = _images(path)
    elif kind == "audio":
        source = _audio(path)
    else:
        tables = _dataset_rows(path) if kind == "dataset" else _table_rows(path)
        source = _rows(kind, path, tables, columns or {}, files or {}, key)
    items = list(source.items)
    if not items:
        raise DataSourceError(f"{path} has no samples of the kind {kind}; give another source, or --kind")
    double = [k for k, n in Counter(item.key for item in items).items() if n > 1]
    if double:
        where = [item.where for item in items if item.key == double[0]][:2]
        raise DataSourceError(
            f"{len(double)} keys occur twice, such as {double[0]} ({' and '.join(where)}); rename one of them, "
            "or choose another --key"
        )
    source.items = sorted(items, key=lambda item: (fraction_of(item.key, seed), item.key))
    source.content = _content(path)
    return source


def _content(path: Path) -> str:
    """Digest of names and sizes of the files, and of the content of tables."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else _files_in(path):
        digest.update(
            f"{file.relative_to(path.parent)}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape")
        )
        if file.suffix.lower() in _TABLES:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def records_of(source: Source, *, skip: bool = False, threads: int = 0) -> Iterator[Record]:
    """Read, decode and yield the samples in order, in several threads.

    A sample that cannot be read raises DataSourceError, or with `skip` is left out and named in `source.bad`.
    """

    def read(item: Item) -> Record | str:
        try:
            members = item.read()
        except (
            DataSourceError,
            OSError,
            ValueError,
        ) as error:  # ValueError: of a path or a text that cannot be
            return (
                f"{item.where}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
            )
        for extension, data in members.items():
            what = bad_member(extension, data)
            if what:
                return f"{item.where}: the {extension} {what}"
        return Record(item.key, members, item.split)

    for found in in_order(read, source.items, threads=threads):
        if isinstance(found, Record):
            yield found
        elif skip:
            source.bad.append(found)
        else:
            raise DataSourceError(
                f"{found}; repair or remove it, or leave such samples out with --bad-samples skip"
            )


def _recognise(path: Path) -> str:
    if path.is_file():
        if path.suffix.lower() in _TABLES:
            return "table"
        raise DataSourceError(f"{path} is not a table ({', '.join(_TABLES)}); give one of these, or a folder")
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        return "dataset"
    suffixes = {file.suffix.lower().removeprefix(".") for file in path.rglob("*") if file.is_file()}
    for kind, known in (("audio", SOUNDS), ("images", IMAGES)):
        if suffixes.intersection(known):
            return kind
    if any(file.suffix.lower() in _TABLES for file in path.iterdir()):
        return "table"
    raise DataSourceError(
        f"{path} has no images ({', '.join(IMAGES)}), sounds ({', '.join(SOUNDS)}) or tables ({', '.join(_TABLES)}); "
        "give a source that has some"
    )


def _split_folders(path: Path) -> list[tuple[str, Path]]:
    """Return the folders of the splits, or the folder itself as one whose split the keys decide."""
    if not path.is_dir():
        raise DataSourceError(f"{path} is not a folder; give the folder of the samples")
    heldout = next((name for name in _HELDOUT_NAMES if (path / name).is_dir()), None)
    if (path / TRAIN).is_dir():
        return [("", path / TRAIN)] if heldout is None else [(TRAIN, path / TRAIN), (HELDOUT, path / heldout)]
    return [("", path)]


def _files_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _images(path: Path) -> Source:
    splits = _split_folders(path)
    names = {
        p.name for _, folder in splits for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")
    }
    if not names:
        raise DataSourceError(
            f"{splits[0][1]} has no class folders; put the images of each class in a folder of its own"
        )
    if names <= _LIKE_SPLITS:
        raise DataSourceError(
            f"{path} has the folders {', '.join(sorted(names))}, which are splits and no classes; name them {TRAIN} and "
            f"{HELDOUT}"
        )
    classes = sorted(names)
    items: list[Item] = []
    ignored = 0
    for split, folder in splits:
        for file in _files_in(folder):
            relative = file.relative_to(folder)
            extension = file.suffix.lower().removeprefix(".")
            if extension not in IMAGES or len(relative.parts) < 2:
                ignored += 1
                continue
            label = str(classes.index(relative.parts[0])).encode()
            extension = "jpg" if extension == "jpeg" else extension
            key = safe_key(f"{split}/{relative.with_suffix('')}" if split else str(relative.with_suffix("")))
            items.append(Item(key, str(file), _file_and(file, extension, {"cls": label}), split))
    return Source("images", items, classes, ignored)


def _audio(path: Path) -> Source:
    """Sounds, each with its transcript in a .txt file of the same name, or in LibriSpeech's .trans.txt files."""
    items: list[Item] = []
    ignored = 0
    for split, folder in _split_folders(path):
        files = _files_in(folder)
        transcripts: dict[tuple[Path, str], str] = {}
        for file in files:
            if file.name.endswith(".trans.txt"):
                for line in _text(file).splitlines():
                    name, _, words = line.partition(" ")
                    transcripts[file.parent, name] = words
        for file in files:
            extension = file.suffix.lower().removeprefix(".")
            if extension not in SOUNDS:
                ignored += extension != "txt"
                continue
            relative = str(file.relative_to(folder).with_suffix(""))
            key = safe_key(f"{split}/{relative}" if split else relative)
            listed = transcripts.get((file.parent, file.stem))
            items.append(Item(key, str(file), _sound_and_text(file, extension, listed), split))
    return Source("audio", items, None, ignored)


def _sound_and_text(file: Path, extension: str, listed: str | None) -> Callable[[], Mapping[str, bytes]]:
    def read() -> Mapping[str, bytes]:
        words = listed
        if words is None:
            transcript = file.with_suffix(".txt")
            if not transcript.is_file():
                raise DataSourceError(f"its transcript {transcript.name} does not exist in the same folder")
            words = _text(transcript)
        if not words.strip():
            raise DataSourceError("its transcript is empty")
        return {extension: file.read_bytes(), "txt": words.strip().encode("utf-8")}

    return read


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataSourceError(
            f"{file} is not UTF-8 ({error.reason} at byte {error.start}); convert it"
        ) from error


def _file_and(file: Path, extension: str, more: Mapping[str, bytes]) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {extension: file.read_bytes(), **more}


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of one file or split. `where` is for messages, `folder` is what paths in columns are relative to."""

    where: str
    folder: Path
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    split: str = ""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the labels of a column


def _table_rows(path: Path) -> list[_Table]:
    files = [path] if path.is_file() else [f for f in sorted(path.iterdir()) if f.suffix.lower() in _TABLES]
    stems = {_stem(file) for file in files}
    if TRAIN in stems:  # the first of the held-out names is used
        heldout = next((name for name in _HELDOUT_NAMES if name in stems), "")
        files = [file for file in files if _stem(file) == heldout or _stem(file) not in _HELDOUT_NAMES]
    tables: list[_Table] = []
    for file in files:
        columns, rows = _read_table(file)
        split = ""
        if len(files) > 1:
            stem = _stem(file)
            split = TRAIN if stem == TRAIN else HELDOUT if stem in _HELDOUT_NAMES else ""
        tables.append(_Table(str(file), file.parent, rows, columns, split))
    splits = {table.split for table in tables}
    if "" in splits and len(splits) > 1:
        named = ", ".join(f"{Path(t.where).name} ({t.split or 'no split'})" for t in tables)
        raise DataSourceError(
            f"{path} has tables with and without the name of a split: {named}; move the others away"
        )
    if splits != {TRAIN, HELDOUT}:
        tables = [_Table(t.where, t.folder, t.rows, t.columns) for t in tables]
    return tables


def _stem(file: Path) -> str:
    """`train` of train.csv and of train-00000-of-00002.parquet."""
    return file.name.partition(".")[0].partition("-")[0]


def _read_table(file: Path) -> tuple[list[str], list[Mapping[str, Any]]]:
    kind = file.suffix.lower()
    if kind == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(file)
        except pyarrow.ArrowException as error:
            raise DataSourceError(
                f"{file} is not a readable Parquet file ({error}); write it again"
            ) from error
        return table.column_names, table.to_pylist()
    text = _text(file)
    if kind == ".jsonl":
        rows: list[Mapping[str, Any]] = []
        columns: dict[str, None] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataSourceError(
                    f"{file}, line {number}: not JSON ({error}); correct the line"
                ) from error
            if not isinstance(row, dict):
                raise DataSourceError(f"{file}, line {number}: not an object; write {{...}} on each line")
            rows.append(row)
            columns.update(dict.fromkeys(row))
        return list(columns), rows
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # texts may be long
    try:
        reader = csv.DictReader(
            io.StringIO(text, newline=""), delimiter="\t" if kind == ".tsv" else ",", strict=True
        )
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise DataSourceError(
                    f"{file}, line {reader.line_num}: it has another number of fields than the first line; correct it"
                )
            rows.append(row)
    except csv.Error as error:
        raise DataSourceError(
            f"{file}, line {reader.line_num}: not CSV ({error}); correct the line"
        ) from error
    return list(reader.fieldnames or ()), rows


def _dataset_rows(path: Path) -> list[_Table]:
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise DataSourceError(
            f"{path} was saved by the datasets library, which cannot be imported here ({error}); "
            "run `pip install datasets`"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataSourceError(
            f"{path} is not a dataset that save_to_disk wrote ({error}); save it again"
        ) from error
    splits = {"": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    heldout = next((name for name in _HELDOUT_NAMES if name in splits), None)
    if TRAIN in splits:
        chosen = [(TRAIN if heldout else "", splits[TRAIN])]
        chosen += [(HELDOUT, splits[heldout])] if heldout else []
    else:
        chosen = [("", one) for one in splits.values()]
    tables: list[_Table] = []
    for split, one in chosen:
        names = {}
        for column, feature in one.features.items():
            if isinstance(feature, datasets.ClassLabel):
                names[column] = feature.names
            elif isinstance(feature, (datasets.Image, datasets.Audio)):
                one = one.cast_column(column, type(feature)(decode=False))  # as it is stored
        tables.append(_Table(f"{path} {split}".strip(), path, one, one.column_names, split, names))
    return tables


def _rows(
    kind: str,
    path: Path,
    tables: Sequence[_Table],
    columns: Mapping[str, str],
    files: Mapping[str, str],
    key: str,
) -> Source:
    present = list(dict.fromkeys(column for table in tables for column in table.columns))
    if not columns and not files:
        columns = _usual_columns(path, present)
    both = set(columns) & set(files)
    if both:
        raise DataSourceError(
            f"{', '.join(sorted(both))} is given with --column and with --file; give one of them"
        )
    for column in (*columns.values(), *files.values(), *([key] if key else [])):
        if column not in present:
            raise DataSourceError(
                f"{path} has no column '{column}'; its columns are {', '.join(present) or 'none'}"
            )
    classes = _class_names(tables, columns.get("cls"))
    items: list[Item] = []
    for table in tables:
        prefix = f"{table.split}/" if table.split else ""
        for number in range(len(table.rows)):
            where = f"{table.where}, row {number + 1}"
            named = table.rows[number].get(key) if key else f"{len(items):08d}"
            name = "" if named is None else safe_key(str(named))
            if not name or not name.rpartition("/")[2]:
                raise DataSourceError(
                    f"{where}: the key column '{key}' is empty; fill it, or leave out --key"
                )
            read = _row_reader(table, number, columns, files, classes)
            items.append(Item(f"{prefix}{name}", where, read, table.split))
    return Source(kind, items, classes)


def _usual_columns(path: Path, present: Sequence[str]) -> dict[str, str]:
    lower = {column.lower(): column for column in reversed(present)}
    found: dict[str, str] = {}
    for extension, names in _USUAL.items():
        name = next((n for n in names if n in lower), None)
        if name is not None:
            found[extension] = lower[name]
    if not found or set(found) == {"cls"}:
        raise DataSourceError(
            f"{path} has the columns {', '.join(present) or 'none'}, and none is known; say which to pack, such as "
            "--column txt=COLUMN --column cls=COLUMN, or --file jpg=COLUMN for a column with paths"
        )
    return found


def _class_names(tables: Sequence[_Table], column: str | None) -> list[str] | None:
    """Return the names of the labels: those of the dataset, or the sorted values unless all are integers."""
    if column is None:
        return None
    for table in tables:
        if column in table.names:
            return list(table.names[column])
    values = {
        _label(row.get(column)) for table in tables for row in table.rows if row.get(column) not in (None, "")
    }
    if all(_is_integer(value) for value in values):
        return None
    if all(map(_is_number, values)):
        wrong = min(value for value in values if not _is_integer(value))
        raise DataSourceError(
            f"column '{column}' has the label {wrong}, and labels are whole numbers or names; choose another column"
        )
    return sorted(values)


def _label(value: Any) -> str:
    """A label as text; a whole number without fraction, which a column with gaps often adds."""
    text = str(int(value)) if isinstance(value, bool) else str(value).strip()
    whole, point, fraction = text.partition(".")
    return whole if point and _is_integer(whole) and not fraction.strip("0") else text


def _is_integer(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _row_reader(
    table: _Table,
    number: int,
    columns: Mapping[str, str],
    files: Mapping[str, str],
    classes: list[str] | None,
) -> Callable[[], Mapping[str, bytes]]:
    def read() -> Mapping[str, bytes]:
        row = table.rows[number]
        members: dict[str, bytes] = {}
        for extension, column in columns.items():
            value = row.get(column)
            if value is None or value == "":
                raise DataSourceError(f"column '{column}' is empty")
            if extension == "cls" and classes is not None and column not in table.names:
                members[extension] = str(classes.index(_label(value))).encode()
            elif extension == "cls" and column not in table.names:
                members[extension] = _label(value).encode()
            else:
                kind, data = _as_bytes(extension, column, value)
                members[kind] = data
        for extension, column in files.items():
            name = row.get(column)
            if not name:
                raise DataSourceError(f"column '{column}' is empty")
            members[extension] = (table.folder / str(name)).read_bytes()
        return members

    return read


def _as_bytes(extension: str, column: str, value: Any) -> tuple[str, bytes]:
    """Return a value as a member; encoded images and sounds get the extension of what they are."""
    if isinstance(value, Mapping) and "bytes" in value:  # images and sounds of the datasets library
        data = value["bytes"]
        if data is None:
            data = Path(str(value.get("path"))).read_bytes()
        value = data
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        found = next((kind for magic, kind in _ENCODED if data.startswith(magic)), extension)
        return (found if extension in _NEEDS_BYTES else extension), data
    if extension in (*IMAGES, *SOUNDS):
        raise DataSourceError(
            f"column '{column}' has no encoded {extension} but {type(value).__name__}; for paths use --file {extension}={column}"
        )
    if isinstance(value, bool):
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return extension, text.encode("utf-8")
