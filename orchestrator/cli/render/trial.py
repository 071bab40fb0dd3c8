"""What `orch try` measured, as lines and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrics.stats import Estimate
from orchestrator.cli.render.words import counted

if TYPE_CHECKING:
    from orchestrator.first_steps.trial import Trial


def trial_json(trial: Trial, policy: str) -> dict[str, Any]:
    """The keys of `orch try -o json`. `policy`: the experiment's data.bad_samples."""
    bad = trial.first_bad
    return {
        "experiment": trial.experiment,
        "task": trial.task,
        "device": trial.device,
        "threads": trial.threads,
        "parameters": trial.parameters,
        "shard": trial.shard,
        "generated": trial.generated,
        "batch_size": trial.batch_size,
        "steps": len(trial.losses),
        "samples_read": trial.samples_read,
        "samples_repeated": trial.samples_repeated,
        "stored_bytes_per_sample": trial.stored_bytes.to_json(),
        "decoded_bytes_per_sample": trial.decoded_bytes.to_json(),
        "decode_ms_per_sample": _times(trial.decode_s, 1000).to_json(),
        "step_ms": _times(trial.step_s, 1000).to_json(),
        "compile_s": trial.compile_s,
        "samples_per_s": trial.samples_per_s.to_json(),
        "loss": {"first": trial.losses[0], "last": trial.losses[-1]},
        "evaluation": {
            "shard": trial.evaluated,
            "samples": trial.evaluated_samples,
            "metrics": dict(trial.metrics),
        },
        "saved_bytes": trial.saved_bytes,
        "peak_rss_bytes": trial.peak_rss_bytes,
        "peak_gpu_bytes": trial.peak_gpu_bytes,
        "bad_samples": {
            "count": trial.bad_samples,
            "policy": policy,
            "first": None if bad is None else {"shard": bad.shard, "key": bad.key, "text": str(bad)},
        },
    }


def trial_lines(trial: Trial) -> list[str]:
    """A line for each subject, the names aligned."""
    source = "generated here, as a local run would" if trial.generated else "read from the store"
    repeated = "; it has no more, so they were repeated" if trial.samples_repeated else ""
    memory = f"{_bytes(trial.peak_rss_bytes)} at most in this process"
    if trial.peak_gpu_bytes is not None:
        memory += f", {_bytes(trial.peak_gpu_bytes)} on the GPU"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in trial.metrics.items()) or "unknown"
    rows = [
        ("task", f"{trial.task}, {trial.parameters:,} parameters"),
        ("device", f"{trial.device}, {counted(trial.threads, 'thread')}"),
        (
            "samples",
            f"{counted(trial.samples_read, 'sample')} of both splits, {source}; training: {trial.shard}{repeated}",
        ),
        ("stored", f"{_bytes(trial.stored_bytes.value)} per sample in the shard, with the tar's headers"),
        ("decoded", f"{_bytes(trial.decoded_bytes.value)} per sample"),
        ("decoding", f"{_estimate(_times(trial.decode_s, 1000))} ms per sample, with one worker"),
        ("step", f"{_estimate(_times(trial.step_s, 1000))} ms with batches of {trial.batch_size}"),
        *(
            []
            if trial.compile_s is None
            else [("compiling", f"{trial.compile_s:.1f} s, before the first step")]
        ),
        ("throughput", f"{_estimate(trial.samples_per_s)} samples/s"),
        (
            "loss",
            f"{trial.losses[0]:.4g} in the first step, {trial.losses[-1]:.4g} in step {len(trial.losses)}",
        ),
        ("evaluation", f"{figures} ({counted(trial.evaluated_samples, 'sample')} of {trial.evaluated})"),
        ("saved", f"{_bytes(trial.saved_bytes)}; loaded again, it evaluates the same"),
        ("memory", memory),
        ("bad", "no samples" if not trial.bad_samples else counted(trial.bad_samples, "sample")),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name.ljust(width)}  {text}" for name, text in rows]


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        estimate.value * factor,
        None if low is None else low * factor,
        None if high is None else high * factor,
        estimate.n,
    )


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{_number(estimate.value)} (n = {estimate.n}, interval unknown)"
    interval = f"{_number(estimate.low)} to {_number(estimate.high)}"
    return f"{_number(estimate.value)} (n = {estimate.n}, 95 % {interval})"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _bytes(size: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"
