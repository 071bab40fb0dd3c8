"""Which scales a run uses and what follows: a pure function of the experiment and the host.

The rules and their measurements are in `docs/emulated-cloud.md`. In short: averaging does not depend on
the target batch size and calculation is linear in it, so calculation is shortened (`samples_scale`);
transfer times stay when bytes and bandwidths shrink together (`bytes_scale`), as far as the host's CPU
asks for it and what does not shrink along lets it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cloud.networks import vm_limit
from experiments.catalog import StepTime, models, step_time
from experiments.emulation.ballast import ballast, largest_scale, shapes_lost
from experiments.emulation.bytes_scale import HIVEMIND_PART_BYTES, Traffic, bytes_scale, parts_of
from experiments.emulation.host_load import KERNEL_WINDOWS_SWITCH_S_PER_GB, SWITCH_S_PER_GB
from experiments.emulation.windows import stream_limit
from experiments.schema.errors import SpecError
from experiments.schema.models import Emulation, ExperimentSpec

CALC_S = 14.0  # raw calculation an epoch: long against progress reports (1 s), short against one's patience
REPORT_S = 1.0  # a report costs five DHT stores; one a second was measured to be harmless


@dataclass(frozen=True, slots=True)
class EmulationPlan:
    """The resolved scales and what follows from them. `raw`: as it happens on this machine."""

    bytes_scale: float
    time_scale: float
    samples_scale: float  # exactly target_batch_size / raw_target_batch_size
    raw_target_batch_size: int
    coalesce: Mapping[str, int]  # accelerator steps a peer reports as one, by accelerator
    steps: float  # accelerator steps a peer takes an epoch (mean of the peers)
    parameters: int  # to average, after bytes_scale
    parts: int  # a peer sends each other peer in a round
    part_size_bytes: int
    calc_s: float | None  # raw, expected; None, here and below: nobody measured a step of it
    comm_s: float  # expected; does not scale
    epoch_s: float | None  # raw, expected
    study_calc_s: float | None  # at the study's scale, expected
    study_epoch_s: float | None
    host_busy: float | None  # expected share of all cores, mean over an epoch; None: nothing is emulated here
    reckoned_epoch_s: float  # what traffic is counted by: the same, else matchmaking, the least a round takes
    windows: str  # what limits a stream: paced, kernel; "": no network is emulated
    window_bytes: float | None  # kernel: a stream's TCP window at full size; None: not limited by one
    reasons: tuple[str, ...]  # why each value is what it is, one sentence each
    matrices: tuple[tuple[int, int], ...] = ()  # among the ballast; else it is vectors


def resolve_emulation(spec: ExperimentSpec, cores: int) -> EmulationPlan:
    """The scales for a host with so many cores; what the experiment gives is kept.

    Expected communication is PAPER's predictor: the slower of one stream on the slowest pair and a VM's own
    sending limit, plus matchmaking. Raises SpecError when the experiment says `emulation: null`.
    """
    if spec.emulation is None:
        raise SpecError.of(spec.name, "is not to be emulated ('emulation: null'); remove the key to allow it")
    accelerators = [g.alternatives[0].accelerators for g in spec.peers for _ in range(g.count)]
    peers = [_times(spec, accelerator) for accelerator in accelerators]
    n, batch, target = len(peers), spec.swarm.batch_size, spec.swarm.target_batch_size
    method = spec.swarm.method
    reasons: list[str] = []

    time_scale = 1.0 if spec.emulation.time_scale == "auto" else spec.emulation.time_scale
    reasons.append(
        "time_scale 1: the only one proved" if time_scale == 1 else f"time_scale {time_scale:g}: as given"
    )

    rate = sum(batch / _step_s(times, batch) for times in peers)  # samples/s of all peers together
    study_calc_s = target / rate
    coalesce, said = _coalesce(spec)
    raw_target = _raw_target(
        spec, spec.emulation, sum(batch * coalesce[a] for a in accelerators), rate, reasons
    )
    reasons.append(said)
    calc_s = raw_target / rate / time_scale

    limit = stream_limit(spec, spec.emulation)
    reasons.append(limit.reason)
    slowest_bps = limit.slowest_bps
    comm_s = _comm_s(spec, slowest_bps) / time_scale
    last_s = max(coalesce[a] * _step_s(times, batch) for a, times in zip(accelerators, peers, strict=True))
    epoch_s = method.schedule.epoch_s(calc_s, comm_s, last_s / time_scale)
    study_epoch_s = method.schedule.epoch_s(study_calc_s, comm_s * time_scale, last_s)
    total = models()[spec.model].parameters
    reasons += method.compression.plan_reasons(spec.model, total)
    traffic = Traffic(
        peers=n,
        parameters=total,
        bytes_per_value=method.compression.bytes_per_value,
        slowest_bps=slowest_bps,
        vm_bps=vm_limit(),
        transfer_s=_transfer_s(spec, slowest_bps) / time_scale,
        epoch_s=epoch_s,
        time_scale=time_scale,
        parts=None if spec.emulation.parts == "auto" else spec.emulation.parts,
        switch_s_per_gb=KERNEL_WINDOWS_SWITCH_S_PER_GB if limit.windows == "kernel" else SWITCH_S_PER_GB,
        sent_values=method.compression.sent_values(spec.model, total),
        largest_scale=None
        if method.compression.rank is None
        else largest_scale(spec.model, method.compression),
    )
    wished, given_by = spec.emulation.bytes_scale, "as given"
    if wished == "auto":
        wished, given_by = limit.bytes_scale, "the kernel windows' own"
    shrunk = bytes_scale(traffic, cores, wished, given_by)
    reasons += shrunk.reasons
    sent_bytes, parts = traffic.sent_bytes(shrunk.scale), traffic.parts_at(shrunk.scale)
    why = "as given" if traffic.parts else parts_of(n, sent_bytes, shrunk.scale)[1]
    reasons.append(f"parts {parts}: {why}")
    made = ballast(spec.model, method.compression, shrunk.scale)
    if made is None:
        raise SpecError.of(spec.name, shapes_lost(spec.model, method.compression, shrunk.scale))

    return EmulationPlan(
        bytes_scale=shrunk.scale,
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
        host_busy=shrunk.load.epoch,
        reckoned_epoch_s=study_epoch_s,
        windows=limit.windows,
        window_bytes=limit.window_bytes,
        reasons=tuple(reasons),
        matrices=made.matrices,
    )


def full_size(spec: ExperimentSpec) -> EmulationPlan:
    """Nothing scaled and nothing emulated: rented VMs train the model itself, as fast as they can.

    Its duration is expected from measured step times, and unknown where one accelerator has none: the VMs need none.
    """
    model, batch, target = models()[spec.model], spec.swarm.batch_size, spec.swarm.target_batch_size
    n = spec.peer_count
    method = spec.swarm.method
    sent_bytes = method.compression.gradient_bytes(spec.model, model.parameters) / n
    accelerators = [g.alternatives[0].accelerators for g in spec.peers for _ in range(g.count)]
    plain = spec.swarm.plain
    known = [t for a in accelerators if (t := step_time(spec.model, a, plain=plain)) is not None]
    calc_s, comm_s = None, _comm_s(spec, vm_limit())
    if len(known) == n and model.kind != "digits":  # its step time is what it is padded to, not a measurement
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
        parts=max(1, math.ceil(sent_bytes / HIVEMIND_PART_BYTES)),
        part_size_bytes=HIVEMIND_PART_BYTES,
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
    )


def _comm_s(spec: ExperimentSpec, slowest_bps: float) -> float:
    """A round at the model's size: its bytes and matchmaking."""
    if not spec.swarm.method.schedule.has_rounds:
        return 0.0
    return _transfer_s(spec, slowest_bps) + spec.swarm.matchmaking_time_s


def _transfer_s(spec: ExperimentSpec, slowest_bps: float) -> float:
    parameters = models()[spec.model].parameters
    return spec.swarm.method.transfer_s(spec.model, parameters, spec.peer_count, slowest_bps, vm_limit())


def _times(spec: ExperimentSpec, accelerator: str) -> StepTime:
    times = step_time(spec.model, accelerator, plain=spec.swarm.plain)
    if times is None:
        raise SpecError.of(
            spec.name, f"no step time is known for {spec.model} on {accelerator}; choose another pair"
        )
    return times


def _step_s(times: StepTime, batch_size: int) -> float:
    return times.forward_s(batch_size) + times.backward_s(batch_size)


def _coalesce(spec: ExperimentSpec) -> tuple[dict[str, int], str]:
    """Steps a report, by accelerator that a slot may get, as far as its step time is known; and why."""
    batch = spec.swarm.batch_size
    wished = dict.fromkeys(r.accelerators for group in spec.peers for r in group.alternatives)
    known = {a: step_time(spec.model, a, plain=spec.swarm.plain) for a in wished}
    step_s = {a: _step_s(times, batch) for a, times in known.items() if times is not None}
    most = max(1, spec.swarm.target_batch_size // (spec.peer_count * batch))
    found = {a: min(most, max(1, round(REPORT_S / seconds))) for a, seconds in step_s.items()}
    if len(found) == 1:
        ((accelerator, count),) = found.items()
        why = f"{count}: a step takes {step_s[accelerator]:.3g} s,"
    else:
        why = ", ".join(f"{c} on {a} (a step takes {step_s[a]:.3g} s)" for a, c in found.items()) + ":"
    return found, f"coalesce {why} a peer reports about once a second"


def _raw_target(
    spec: ExperimentSpec, emulation: Emulation, unit: int, rate: float, reasons: list[str]
) -> int:
    """Raw target batch size. `unit`: samples of one report of each peer; `rate`: samples/s of all."""
    target, study_calc_s = spec.swarm.target_batch_size, spec.swarm.target_batch_size / rate
    short, hides = study_calc_s <= CALC_S, spec.swarm.method.schedule.hides_rounds
    if emulation.samples_scale == 1 or (emulation.samples_scale == "auto" and (short or hides)):
        why = (
            "as given" if emulation.samples_scale == 1 else f"an epoch calculates {study_calc_s:.1f} s anyway"
        )
        if emulation.samples_scale == "auto" and not short:
            why = f"what {study_calc_s:.1f} s of calculation hide of the communication does not scale"
        reasons.append(f"samples_scale 1: {why}")
        return target
    if emulation.samples_scale == "auto":
        wished, why = CALC_S * rate / unit, f"about {CALC_S:g} s of calculation an epoch"
    else:
        wished, why = target / emulation.samples_scale / unit, f"{emulation.samples_scale:g} wished"
    raw = min(max(1, round(wished)) * unit, target)
    reasons.append(
        f"samples_scale {target / raw:g}: {why}, in multiples of {unit} samples (a report of each peer)"
    )
    return raw
