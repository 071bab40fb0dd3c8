"""What the report needs of trace.json and map.json, so that other files are refused before it is drawn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, BaseModel, Field, TypeAdapter, ValidationError

Number = Annotated[float, AllowInfNan(False)]
Count = Annotated[int, Field(ge=0)]


class _Common(BaseModel):
    schema_version: Literal[1]
    target: str
    pipeline: str
    fingerprint: str
    machine: str
    measured_at: str


class _Op(BaseModel):
    name: str
    n: Annotated[int, Field(ge=1)]
    mean_ms: Number
    p90_ms: Number
    share_below_10ms: Number
    share_below_100us: Number
    cpu_s: Number | None
    mean_bytes_out: Number | None


class _Batches(BaseModel):
    n: Count
    mean_ms: Number | None
    wait_s: Number | None
    delay_s: Number | None
    share_wait_over_500ms: Number | None
    share_delay_over_500ms: Number | None
    out_of_order: Count | None


class _Traced(BaseModel):
    workers: Annotated[int, Field(ge=1)]
    worker_kind: str
    in_order: bool
    streams: Count
    samples_per_s: Number | None
    samples_per_s_interval: tuple[Number, Number] | None
    cpu_s: Number | None
    ops: list[_Op]
    batches: _Batches


class _Advice(BaseModel):
    of_workers: Count | None
    sentence: str


class _Link(BaseModel):
    rate_mbps: Number
    rtt_ms: Number


class TraceDocument(_Common):
    """What `orch pipeline trace` saves of an experiment or a pipeline."""

    generated: bool
    endpoint: str
    link: _Link | None
    batch_size: Count
    traces: Annotated[list[_Traced], Field(min_length=1)]
    advice: list[_Advice]


class _MappedOp(BaseModel):
    op: str
    calls: Count
    count: Count
    share: Number
    wall_ns: Number | None
    events: dict[str, int | None]


class _Function(BaseModel):
    op: str
    function: str
    library: str
    count: Count
    share: Number
    low: Number | None
    high: Number | None


class _Lotus(BaseModel):
    error: Number | None
    unmapped: Number | None


class _Map(_Common):
    ops: list[_MappedOp]
    functions: list[_Function]
    unknown_events: dict[str, str]
    lotus: _Lotus | None


class _Sampled(_Map):
    unit: Literal["samples"]
    frequency_hz: Count
    seconds: Number


class _Exact(_Map):
    unit: Literal["instructions"]


MapDocument = _Sampled | _Exact
"""What `orch pipeline map` saves."""


def problem(document: Any, kind: Any) -> str:
    """The first thing that is wrong with a document, such as `traces.0.ops: Field required`; "" if nothing is."""
    try:
        TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
    return ""
