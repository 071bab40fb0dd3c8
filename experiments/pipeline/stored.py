"""A strategy's stored prefix: the values after a pipeline's first operations as members of ordinary WebDataset shards.

The manifest says which operations have run; `resumed` checks it and gives the pipeline of the others.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, cast, get_args

import numpy as np

from cloud.storage.samples import Sample
from cloud.storage.shards import Record
from experiments.pipeline.codecs import CODECS, DEFAULT_CODEC, Kind
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

StoredCodec = Literal["none", "gzip", "zlib", "zstd", "png", "webp"]
"""How values are stored: as they are, compressed, or images as PNG or lossless WebP and all others as they are."""

STORED_CODECS: tuple[StoredCodec, ...] = get_args(StoredCodec)
_OF_IMAGES = ("png", "webp")

_FORMAT = 1
_SUFFIX: dict[Kind, str] = {"bytes": "bin", "text": "txt", "number": "json", "image": "npy", "array": "npy"}
_COMPRESSED = {"gzip": ".gz", "zlib": ".zlib", "zstd": ".zst"}
_WBITS: dict[str, int] = {"gzip": 31, "zlib": 15}  # of zlib
LARGEST_VALUE_BYTES = 2**28  # of a compressed value
_ARRAY_MODES = ("L", "RGB", "RGBA")  # of images that an array holds without loss


def storable(pipeline: Pipeline) -> int:
    """Return how many of the first operations may be stored: all before the first random one."""
    return next((at for at, op in enumerate(pipeline.ops) if op.random), len(pipeline.ops))


def may_hold(codec: StoredCodec, kinds: Collection[str]) -> bool:
    """Whether a codec applies to values of these kinds: PNG and WebP need an image among them."""
    return codec not in _OF_IMAGES or "image" in kinds


@dataclass(frozen=True)
class FirstOps:
    """The first `ops` operations of a pipeline, whose values become members of the sample, written with `codec`.

    Raises PipelineError for a number out of range or an unknown codec.
    """

    pipeline: Pipeline
    ops: int
    codec: StoredCodec = "none"

    def __post_init__(self) -> None:
        name, all_ops = self.pipeline.name, self.pipeline.ops
        if not 1 <= self.ops <= len(all_ops):
            raise PipelineError(
                f"pipeline {name} has {len(all_ops)} operations, so its first {self.ops} cannot be stored; "
                f"choose 1 to {len(all_ops)}"
            )
        if self.codec not in STORED_CODECS:
            raise PipelineError(
                f"values cannot be stored with {self.codec!r}; use one of {', '.join(STORED_CODECS)}"
            )

    @cached_property
    def extensions(self) -> dict[str, str]:
        """The extension of each stored field: "image.npy", "image.npy.gz", "image.png", "label.json"."""
        kinds = self.pipeline.kinds(self.ops)
        outputs = {op.output for op in self.pipeline.ops[: self.ops]}
        return {
            field: f"{field}.{self._marker}{self._suffix(kinds[field])}"
            for field in kinds
            if field in outputs
        }

    def record(self, sample: Sample, seed: int = 0, pass_number: int = 0) -> Record:
        """Run the operations on a sample and encode their values; its other members are kept as they are.

        Seed and pass determine the random numbers of random operations.

        Raises BadSampleError, and what `Pipeline.run` raises besides.
        """
        item = self._offline.run(sample, seed, pass_number)
        used = {
            field: next(extension for extension in extensions if extension in sample)
            for field, extensions in self.pipeline.fields.items()
        }
        kept = {extension for field, extension in used.items() if field not in self.extensions}
        members: dict[str, bytes] = {
            extension: data
            for extension, data in sample.items()
            if not extension.startswith("__") and (extension in kept or extension not in used.values())
        }
        kinds = self.pipeline.kinds(self.ops)
        for field, extension in self.extensions.items():
            if extension in members:
                reason = (
                    f"it has a member {extension} already, where the value of field {field} is to be stored"
                )
                raise BadSampleError(sample["__url__"], sample["__key__"], "", reason)
            try:
                members[extension] = self._encoded(item[field], kinds[field])
            except ValueError as error:
                raise BadSampleError(sample["__url__"], sample["__key__"], "", str(error)) from error
        return Record(sample["__key__"], members)

    @property
    def online(self) -> Pipeline:
        """The pipeline of the other operations, which reads the stored values.

        Its operations keep their names, and so their random numbers.
        """
        kinds = self.pipeline.kinds(self.ops)
        fields = dict(self.pipeline.fields) | {field: (ext,) for field, ext in self.extensions.items()}
        load = tuple(
            Op(
                f"load {field}",
                f"{__name__}:decode",
                field,
                "bytes",
                kinds[field],
                {"kind": kinds[field], "codec": self.codec},
                libraries=("numpy", "pillow") if kinds[field] == "image" else ("numpy",),
            )
            for field in self.extensions
        )
        return Pipeline(self.pipeline.name, fields, (*load, *self.pipeline.ops[self.ops :]))

    @cached_property
    def _offline(self) -> Pipeline:
        return Pipeline(self.pipeline.name, self.pipeline.fields, self.pipeline.ops[: self.ops])

    def _suffix(self, kind: Kind) -> str:
        if kind == "image" and self.codec in ("png", "webp"):
            return self.codec
        return _SUFFIX[kind] + _COMPRESSED.get(self.codec, "")

    @property
    def _marker(self) -> str:
        """What the extensions have between field and suffix."""
        return ""

    def _encoded(self, value: Any, kind: Kind) -> bytes:
        return encode(value, kind, self.codec)


@dataclass(frozen=True)
class Prefix(FirstOps):
    """The first `ops` operations of a pipeline, whose values are stored with `codec` once for all passes.

    Raises PipelineError as FirstOps does, and for a random operation among them.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        most = storable(self.pipeline)
        if self.ops > most:
            advice = (
                f"store at most the first {most}" if most else "none can be stored, so move it behind others"
            )
            raise PipelineError(
                f"pipeline {self.pipeline.name}: operation {self.pipeline.ops[most].name} is random, and only a prefix "
                "before the first random operation may be stored (a stored random operation is random no more, and "
                f"accuracy falls); {advice}"
            )

    def manifest(self) -> dict[str, Any]:
        """What was stored, in JSON types. Raises PipelineError, as fingerprints do."""
        return {
            "format": _FORMAT,
            "pipeline": self.pipeline.name,
            "ops": self.ops,
            "codec": self.codec,
            "fingerprint": self.pipeline.fingerprint(self.ops),
            "fields": dict(self.extensions),
            "declared": _declared(self.pipeline, self.ops),
        }


def resumed(pipeline: Pipeline, manifest: Any, where: str) -> Pipeline:
    """Return the pipeline that reads the stored values of `manifest` and runs the operations left of `pipeline`.

    `where`: the shards' prefix, for messages. Raises PipelineError if the manifest is damaged, or is that of other
    operations than the pipeline's first ones, naming what differs.
    """
    advice = "store the shards again, or use the pipeline that they were made with"
    try:
        if manifest["format"] != _FORMAT:
            raise PipelineError(
                f"{where} has stored values of format {manifest['format']}, and this version of orch reads format {_FORMAT}; "
                "store the shards again"
            )
        ops, codec = manifest["ops"], manifest["codec"]
        declared, fingerprint, fields = manifest["declared"], manifest["fingerprint"], manifest["fields"]
        if type(ops) is not int or ops < 1 or codec not in STORED_CODECS or not isinstance(declared, dict):
            raise TypeError("a value has another type")
        here = _declared(pipeline, ops)
        if ops > len(pipeline.ops) or pipeline.fingerprint(ops) != fingerprint:
            raise PipelineError(
                f"{where} holds the values after the first {ops} operations of another pipeline than {pipeline.name}: "
                f"{_difference(declared, here)}; {advice}"
            )
        prefix = Prefix(pipeline, ops, cast(StoredCodec, codec))
        if prefix.extensions != fields:
            raise ValueError(f"its fields are {fields}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            f"the manifest of {where} is damaged ({type(error).__name__}: {error}); store the shards again"
        ) from error
    return prefix.online


def encode(value: Any, kind: Kind, codec: StoredCodec) -> bytes:
    """Encode a value without loss. Raises ValueError if the codec cannot hold it."""
    if kind == "image":
        if codec == "png":
            return CODECS["png"].encode(value)
        if codec == "webp":
            return CODECS["webp"].encode(value)
        if value.mode not in _ARRAY_MODES:
            raise ValueError(f"an image of mode {value.mode} cannot be stored as an array; use png")
        data = CODECS["npy"].encode(np.asarray(value))
    else:
        data = CODECS[DEFAULT_CODEC[kind]].encode(value)
    if codec not in _COMPRESSED:
        return data
    if len(data) > LARGEST_VALUE_BYTES:
        raise ValueError(
            f"a value of {len(data)} bytes cannot be stored with {codec}, only up to {LARGEST_VALUE_BYTES}"
        )
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=1).compress(data)
    return gzip.compress(data, 1, mtime=0) if codec == "gzip" else zlib.compress(data, 1)


def decode(data: bytes, kind: Kind, codec: StoredCodec) -> Any:
    """Decode what `encode` wrote. Raises the codecs' errors."""
    if kind == "image" and codec in ("png", "webp"):
        from PIL import Image

        with Image.open(io.BytesIO(data), formats=(codec,)) as image:
            image.load()
            return image
    if codec == "zstd":
        data = _decompress_zstd(data)
    elif codec in _WBITS:
        data = _decompress(data, codec)
    if kind == "image":
        from PIL import Image

        return Image.fromarray(CODECS["npy"].decode(data))
    return CODECS[DEFAULT_CODEC[kind]].decode(data)


def _decompress(data: bytes, codec: StoredCodec) -> bytes:
    """Decompress a value without taking more memory than a value may have. Raises ValueError, zlib.error."""
    stream = zlib.decompressobj(_WBITS[codec])
    value = stream.decompress(data, LARGEST_VALUE_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"its value has more than {LARGEST_VALUE_BYTES} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError(f"its {codec} data are {'followed by others' if stream.eof else 'cut'}")
    return value


def _decompress_zstd(data: bytes) -> bytes:
    """Decompress one zstd frame that tells its size, as `_decompress`. Raises ValueError."""
    import zstandard

    try:
        size_bytes = zstandard.frame_content_size(data)
        if size_bytes < 0:
            raise ValueError("its zstd data do not tell their size")
        if size_bytes > LARGEST_VALUE_BYTES:
            raise ValueError(f"its value has more than {LARGEST_VALUE_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"its zstd data are cut or damaged ({error})") from error


def _declared(pipeline: Pipeline, ops: int) -> dict[str, Any]:
    """Fields and operations as the fingerprint takes them, with a SHA-256 of each source."""
    declared = pipeline.declaration(ops)
    for one in declared["ops"]:
        one["source"] = sha256(one["source"].encode()).hexdigest()
    return json.loads(json.dumps(declared))


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first differences of two declarations, in words."""
    if there["fields"] != here["fields"]:
        return _values("the extensions of its fields", there["fields"], here["fields"])
    names = [one["name"] for one in there["ops"]], [one["name"] for one in here["ops"]]
    if names[0] != names[1]:
        return _values("the operations", *(", ".join(found) or "none" for found in names))
    for one, other in zip(there["ops"], here["ops"], strict=True):
        found = [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]
        if found == ["source"]:
            return f"the source of operation {one['name']} ({one['call']}) is another one"
        if found:
            key = next(key for key in found if key != "source")
            return _values(f"{key} of operation {one['name']}", one.get(key), other.get(key))
    return "the fingerprints differ, though the declarations are the same"


def _values(what: str, there: Any, here: Any) -> str:
    first, second = (value if isinstance(value, str) else json.dumps(value) for value in (there, here))
    return f"{what}: {first} there, {second} here"
