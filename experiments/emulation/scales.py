"""Scales of a run and the resulting sizes and times, as a pure function of the experiment and the host.

The rules and measurements are in `docs/emulated-cloud.md`. In short: averaging does not depend on the target batch
size and calculation is linear in it, so calculation is shortened (`samples_scale`). Transfer times do not change if
bytes and bandwidths are reduced together (`bytes_scale`). How much depends on the host's CPU and on the constants that
cannot be scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cloud.networks import vm_limit
from experiments.averaging.records import PART_BYTES
from experiments.catalog import Model, StepTime, step_time
from experiments.emulation.accelerators import HOST, PADDED, REAL, is_padded
from experiments.emulation.ballast import Ballast, ballast, ballast_error, largest_scale
from experiments.emulation.bytes_scale import (
    WARNING,
    Traffic,
    bytes_scale,
    parts_of,
)
from experiments.emulation.host_load import HALF, KERNEL_WINDOWS_SWITCH_S_PER_GB, SWITCH_S_PER_GB
from experiments.emulation.windows import StreamLimit, stream_limit
from experiments.schema.errors import SpecError
from experiments.schema.models import Emulation, ExperimentSpec
from experiments.schema.trained_model import model_of

CALC_S = 14.0  # raw calculation per epoch: long relative to progress reports (1 s), short enough for the user
REPORT_S = 1.0  # a report costs five DHT stores; one per second was measured to be harmless


@dataclass(frozen=True, slots=True)
class EmulationPlan:
    """The resolved scales and the resulting sizes and times. Raw: on this machine."""

    bytes_scale: float
    time_scale: float
    samples_scale: float  # exactly target_batch_size / raw_target_batch_size
    raw_target_batch_size: int
    coalesce: Mapping[str, int]  # accelerator steps that a peer reports as one, by accelerator
    steps: float  # accelerator steps per peer and epoch (mean over the peers)
    parameters: int  # to average, after bytes_scale
    parts: int  # from each peer to each other in a round
    part_size_bytes: int
    calc_s: float | None  # expected, raw; None, here and below: its step time was never measured
    comm_s: float  # expected, raw
    epoch_s: float | None  # expected, raw
    study_calc_s: float | None  # expected, at full scale
    study_epoch_s: float | None  # expected, at full scale
    host_busy: float | None  # expected share of all cores, mean over an epoch; None: nothing is emulated
    reckoned_epoch_s: (
        float  # for traffic per hour: study_epoch_s, or matchmaking, the shortest possible round, if unknown
    )
    windows: str  # what limits a stream: paced, kernel; "": no emulated network
    window_bytes: float | None  # kernel: TCP window of a stream at full scale; None: no limit
    reasons: tuple[str, ...]  # one sentence for each value
    matrices: tuple[tuple[int, int], ...] = ()  # in the ballast; the rest is vectors
    accelerators: str = PADDED  # see `experiments.emulation.accelerators`


def resolve_emulation(spec: ExperimentSpec, cores: int) -> EmulationPlan:
    """Resolve the scales for a host with `cores` cores. Scales set in the experiment are kept.

    The expected communication follows PAPER.md: the slower of one stream on the slowest pair and a VM's own sending
    limit, plus matchmaking. Raises SpecError if the experiment has `emulation: null`.
    """
    if spec.emulation is None:
        raise SpecError.of(
            spec.name, "has 'emulation: null', so it cannot be emulated; remove the key to allow it"
        )
    if not is_padded(spec):
        return _on_host(spec, spec.emulation, cores)
    accelerators = [g.alternatives[0].accelerators for g in spec.peers for _ in range(g.count)]
    peers = [_times(spec, accelerator) for accelerator in accelerators]
    n, batch, target = len(peers), spec.swarm.batch_size, spec.swarm.target_batch_size
    method = spec.swarm.method
    reasons: list[str] = []

    time_scale = 1.0 if spec.emulation.time_scale == "auto" else spec.emulation.time_scale
    reasons.append(
        "time_scale 1: the only validated one" if time_scale == 1 else f"time_scale {time_scale:g}: as given"
    )

    rate = sum(batch / _step_s(times, batch) for times in peers)  # samples/s of all peers together
    study_calc_s = target / rate
    coalesce, coalesce_reason = _coalesce(spec)
    raw_target = _raw_target(
        spec, spec.emulation, sum(batch * coalesce[a] for a in accelerators), rate, reasons
    )
    reasons.append(coalesce_reason)
    calc_s = raw_target / rate / time_scale

    limit = stream_limit(spec, spec.emulation)
    reasons.append(limit.reason)
    slowest_bps = limit.slowest_bps
    comm_s = _comm_s(spec, slowest_bps) / time_scale
    last_s = max(coalesce[a] * _step_s(times, batch) for a, times in zip(accelerators, peers, strict=True))
    epoch_s = method.schedule.epoch_s(calc_s, comm_s, last_s / time_scale)
    study_epoch_s = method.schedule.epoch_s(study_calc_s, comm_s * time_scale, last_s)
    model = model_of(spec)
    reasons += method.compression.plan_reasons(model.averaged_as, model.parameters)
    traffic = replace(
        _traffic(spec, model, limit),
        transfer_s=_transfer_s(spec, slowest_bps) / time_scale,
        epoch_s=epoch_s,
        time_scale=time_scale,
        parts=None if spec.emulation.parts == "auto" else spec.emulation.parts,
        largest_scale=None
        if method.compression.rank is None or spec.task is not None
        else largest_scale(model.name, method.compression),
    )
    requested, given_by = spec.emulation.bytes_scale, "as given"
    if requested == "auto" and spec.task is not None:
        requested, given_by = 1.0, "the task's own model is trained"
    if requested == "auto":
        requested, given_by = limit.bytes_scale, "required by the kernel windows"
    chosen = bytes_scale(traffic, cores, requested, given_by)
    reasons += chosen.reasons
    sent_bytes, parts = traffic.sent_bytes(chosen.scale), traffic.parts_at(chosen.scale)
    why = "as given" if traffic.parts else parts_of(n, sent_bytes, chosen.scale)[1]
    reasons.append(f"parts {parts}: {why}")
    whole = spec.task is not None  # its own model is trained, without ballast
    made = Ballast(model.parameters) if whole else ballast(model.name, method.compression, chosen.scale)
    if made is None:
        raise SpecError.of(spec.name, ballast_error(model.name, method.compression, chosen.scale))

    return EmulationPlan(
        bytes_scale=chosen.scale,
        time_scale=time_scale,
        samples_scale=target / raw_target,
        raw_target_batch_size=raw_target,
        coalesce=coalesce,
        steps=raw_target / batch / n,
        parameters=made.parameters,
        parts=parts,
        part_size_bytes=math.ceil(sent_bytes / parts),
        calc_s=calc_s,
        comm_s=comm_s,
        epoch_s=epoch_s,
        study_calc_s=study_calc_s,
        study_epoch_s=study_epoch_s,
        host_busy=chosen.load.epoch,
        reckoned_epoch_s=study_epoch_s,
        windows=limit.windows,
        window_bytes=limit.window_bytes,
        reasons=tuple(reasons),
        matrices=made.matrices,
    )


def full_size(spec: ExperimentSpec) -> EmulationPlan:
    """Return the plan for rented VMs, without scaling or emulation.

    The duration is estimated from measured step times. It is unknown if one accelerator has none.
    """
    model, batch, target = model_of(spec), spec.swarm.batch_size, spec.swarm.target_batch_size
    n = spec.peer_count
    method = spec.swarm.method
    sent_bytes = method.compression.gradient_bytes(model.averaged_as, model.parameters) / n
    accelerators = [g.alternatives[0].accelerators for g in spec.peers for _ in range(g.count)]
    plain = spec.swarm.plain
    known = [t for a in accelerators if (t := step_time(spec.timed_as, a, plain=plain)) is not None]
    calc_s, comm_s = None, _comm_s(spec, vm_limit())
    if len(known) == n and model.kind != "digits":  # digits' step time is a padding target, not a measurement
        calc_s = target / sum(batch / _step_s(times, batch) for times in known)
    last_s = max((_step_s(times, batch) for times in known), default=0.0)
    epoch_s = None if calc_s is None else method.schedule.epoch_s(calc_s, comm_s, last_s)
    return EmulationPlan(
        bytes_scale=1.0,
        time_scale=1.0,
        samples_scale=1.0,
        raw_target_batch_size=target,
        coalesce=dict.fromkeys(accelerators, 1),
        steps=target / batch / n,
        parameters=model.parameters,
        parts=max(1, math.ceil(sent_bytes / PART_BYTES)),
        part_size_bytes=PART_BYTES,
        calc_s=calc_s,
        comm_s=comm_s,
        epoch_s=epoch_s,
        study_calc_s=calc_s,
        study_epoch_s=epoch_s,
        host_busy=None,
        reckoned_epoch_s=spec.swarm.matchmaking_time_s if epoch_s is None else epoch_s,
        windows="",
        window_bytes=None,
        reasons=(),
        accelerators=REAL,
    )


def _on_host(spec: ExperimentSpec, emulation: Emulation, cores: int) -> EmulationPlan:
    """Return the plan for unpadded steps: an emulated network, nothing scaled, and an unknown duration of calculation."""
    model, limit = model_of(spec), stream_limit(spec, emulation)
    n, method, comm_s = spec.peer_count, spec.swarm.method, _comm_s(spec, limit.slowest_bps)
    real = full_size(spec)
    traffic = replace(
        _traffic(spec, model, limit),
        transfer_s=_transfer_s(spec, limit.slowest_bps),
        parts=real.parts if emulation.parts == "auto" else emulation.parts,
    )
    shared = f", which {n} peers share" if n > 1 else ""
    reasons = [
        "accelerators host: a step takes as long as this machine's CPU needs with one thread; calculation times are those "
        f"of this machine{shared}, not of the accelerators",
        "bytes_scale 1, time_scale 1, samples_scale 1: the model itself is trained",
        limit.reason,
        *method.compression.plan_reasons(model.averaged_as, model.parameters),
    ]
    if method.schedule.has_rounds and n > 1:
        switch = traffic.load(1.0, cores).switch
        busy = f"the switch is expected to use {100 * switch:.0f} % of its one core during transfers"
        reasons.append(busy)
        if switch >= HALF:
            reasons.append(
                f"{WARNING}{busy}: averaging may take longer than the network alone would cause; use a slower network, a "
                "smaller model or stronger compression"
            )
    return replace(
        real,
        parts=traffic.parts_at(1.0),
        part_size_bytes=math.ceil(traffic.sent_bytes(1.0) / traffic.parts_at(1.0)),
        calc_s=None,
        comm_s=comm_s,
        epoch_s=None,
        study_calc_s=None,
        study_epoch_s=None,
        reckoned_epoch_s=max(comm_s, spec.swarm.matchmaking_time_s),
        windows=limit.windows,
        window_bytes=limit.window_bytes,
        reasons=tuple(reasons),
        accelerators=HOST,
    )


def _traffic(spec: ExperimentSpec, model: Model, limit: StreamLimit) -> Traffic:
    """Return the traffic of a round at full scale, without the times of an epoch."""
    compression = spec.swarm.method.compression
    return Traffic(
        peers=spec.peer_count,
        parameters=model.parameters,
        bytes_per_value=compression.bytes_per_value,
        slowest_bps=limit.slowest_bps,
        vm_bps=vm_limit(),
        transfer_s=0.0,
        epoch_s=0.0,
        time_scale=1.0,
        switch_s_per_gb=KERNEL_WINDOWS_SWITCH_S_PER_GB if limit.windows == "kernel" else SWITCH_S_PER_GB,
        sent_values=compression.sent_values(model.averaged_as, model.parameters),
    )


def _comm_s(spec: ExperimentSpec, slowest_bps: float) -> float:
    """Return the seconds of a round at full scale: transfers and matchmaking."""
    if not spec.swarm.method.schedule.has_rounds:
        return 0.0
    return _transfer_s(spec, slowest_bps) + spec.swarm.matchmaking_time_s


def _transfer_s(spec: ExperimentSpec, slowest_bps: float) -> float:
    model = model_of(spec)
    return spec.swarm.method.transfer_s(
        model.averaged_as, model.parameters, spec.peer_count, slowest_bps, vm_limit()
    )


def _times(spec: ExperimentSpec, accelerator: str) -> StepTime:
    times = step_time(spec.timed_as, accelerator, plain=spec.swarm.plain)
    if times is None:
        raise SpecError.of(
            spec.name,
            f"no step time is known for {spec.timed_as} on {accelerator}; choose another model or accelerator",
        )
    return times


def _step_s(times: StepTime, batch_size: int) -> float:
    return times.forward_s(batch_size) + times.backward_s(batch_size)


def _coalesce(spec: ExperimentSpec) -> tuple[dict[str, int], str]:
    """Return the steps per report by accelerator, for all alternatives with a known step time, and the reason."""
    batch = spec.swarm.batch_size
    accelerators = dict.fromkeys(r.accelerators for group in spec.peers for r in group.alternatives)
    known = {a: step_time(spec.timed_as, a, plain=spec.swarm.plain) for a in accelerators}
    step_s = {a: _step_s(times, batch) for a, times in known.items() if times is not None}
    most = max(1, spec.swarm.target_batch_size // (spec.peer_count * batch))
    found = {a: min(most, max(1, round(REPORT_S / seconds))) for a, seconds in step_s.items()}
    if len(found) == 1:
        ((accelerator, count),) = found.items()
        why = f"{count}: a step takes {step_s[accelerator]:.3g} s,"
    else:
        why = ", ".join(f"{c} on {a} (a step takes {step_s[a]:.3g} s)" for a, c in found.items()) + ":"
    return found, f"coalesce {why} a peer reports about once per second"


def _raw_target(
    spec: ExperimentSpec, emulation: Emulation, unit: int, rate: float, reasons: list[str]
) -> int:
    """Return the raw target batch size. `unit`: samples in one report of every peer. `rate`: samples/s of all peers."""
    target, study_calc_s = spec.swarm.target_batch_size, spec.swarm.target_batch_size / rate
    short, overlaps = study_calc_s <= CALC_S, spec.swarm.method.schedule.overlaps_rounds
    if emulation.samples_scale == 1 or (emulation.samples_scale == "auto" and (short or overlaps)):
        why = (
            "as given"
            if emulation.samples_scale == 1
            else f"an epoch has only {study_calc_s:.1f} s of calculation"
        )
        if emulation.samples_scale == "auto" and not short:
            why = f"the communication that overlaps with {study_calc_s:.1f} s of calculation does not scale"
        reasons.append(f"samples_scale 1: {why}")
        return target
    if emulation.samples_scale == "auto":
        reports, why = CALC_S * rate / unit, f"about {CALC_S:g} s of calculation per epoch"
    else:
        reports, why = target / emulation.samples_scale / unit, f"{emulation.samples_scale:g} requested"
    raw = min(max(1, round(reports)) * unit, target)
    reasons.append(
        f"samples_scale {target / raw:g}: {why}, in multiples of {unit} samples (one report of every peer)"
    )
    return raw
