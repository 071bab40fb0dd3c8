"""The columns of every frame: name with unit, type, meaning. A test compares docs/notebook.md with them."""

from __future__ import annotations

from typing import NamedTuple

from metrics.figures import EPOCH, FIGURES, REPLAY


class Column(NamedTuple):
    """A column of a frame. `dtype` is the pandas type; unknown is NaN in float64, <NA> in Int64 and boolean, else None."""

    name: str
    dtype: str
    meaning: str


_WHOLE, _NUMBER, _YES, _TEXT = "int64", "float64", "bool", "object"
_MAYBE_WHOLE = "Int64"  # pandas' integers with <NA>
_MAYBE = "boolean"
_TIME = "datetime64[ns, UTC]"

_OF_SPS = {
    "n_epochs": Column("n_epochs", _MAYBE_WHOLE, "measured epochs"),
    "sps_low": Column("sps_low", _NUMBER, "95 % interval of sps"),
    "sps_high": Column("sps_high", _NUMBER, "95 % interval of sps"),
}

FRAMES: dict[str, tuple[Column, ...]] = {
    "runs": (
        Column("run_id", _TEXT, "the run's id, and its folder's name"),
        Column("experiment", _TEXT, "name of the experiment"),
        Column(
            "status", _TEXT, "running, done, failed, stopped, budget or no_capacity, as recorded; unreadable"
        ),
        Column("started_at", _TIME, "when it was launched"),
        Column("ended_at", _TIME, "when it ended; NaT: still running"),
        Column("target", _TEXT, "local (namespaces), loopback, or a cloud"),
        Column("emulated", _MAYBE, "whether distance and accelerators are emulated"),
        Column(
            "scales",
            _TEXT,
            "factors by which bytes, time and samples were scaled down, a dict; None: not scaled, or unknown",
        ),
        Column("host_contended", _MAYBE, "the host was too busy to keep the clock; <NA>: unknown"),
        Column("peers", _MAYBE_WHOLE, "slots that had a VM"),
        Column("model", _TEXT, "name of the modelled network"),
        Column("target_batch_size", _MAYBE_WHOLE, "samples per Hivemind epoch, at full scale"),
        Column("error", _TEXT, "why it failed, or why it cannot be read"),
        Column("folder", _TEXT, "the run's folder"),
    ),
    "epochs": (
        Column("epoch", _WHOLE, "number of the Hivemind epoch; epoch 1 ends with the first averaging round"),
        Column("warmup", _YES, "excluded from the means"),
        Column("measured", _YES, "included in the means: complete, after the warm-up, with a wall time"),
        Column("peers", _WHOLE, "peers with a record of this epoch"),
        Column("samples", _NUMBER, "of all peers"),
        *(Column(key, _NUMBER, FIGURES[key].epoch_meaning) for key in EPOCH),
        Column("loss", _NUMBER, "mean over the peers, weighted by their samples"),
        Column("joined", _TEXT, "slots absent in the previous epoch, comma-separated"),
        Column("left", _TEXT, "slots present only in the previous epoch"),
        Column("dropped", _YES, "part of the averaging was lost"),
        Column("ended_s", _NUMBER, "when it ended, unix seconds"),
        Column("raw_samples", _NUMBER, "as measured, not at full scale"),
        Column("raw_calc_s", _NUMBER, "as measured, not at full scale"),
        Column("raw_comm_s", _NUMBER, "as measured, not at full scale"),
        Column("raw_epoch_s", _NUMBER, "as measured, not at full scale"),
    ),
    "peer_epochs": (
        Column("vm", _TEXT, "name of the VM"),
        Column("slot", _TEXT, "the slot it fills"),
        Column("epoch", _WHOLE, "number of the Hivemind epoch"),
        Column("warmup", _YES, "excluded from the means"),
        Column("measured", _YES, "in the means"),
        Column("samples", _NUMBER, "this peer's own"),
        Column("calc_s", _NUMBER, "wall time outside the synchronizing step"),
        Column("comm_s", _NUMBER, "wall time of the averaging round"),
        Column("overlapped_s", _NUMBER, "part of comm_s during which the peer computed"),
        Column("granularity", _NUMBER, "calc_s / comm_s"),
        Column("load_s", _NUMBER, "part of calc_s: waiting for data"),
        Column("timed_s", _NUMBER, "part of calc_s covered by the paper's phase timers"),
    ),
    "peers": (
        Column("vm", _TEXT, "name of the VM"),
        Column("slot", _TEXT, "the slot it filled; its replacement has the same"),
        Column("generation", _WHOLE, "0 for the slot's first VM"),
        Column("location", _TEXT, "cloud/region/zone; `unknown` in logs that do not say"),
        Column("accelerator", _TEXT, "name:count"),
        Column("instance", _TEXT, "the provider's name of the machine"),
        Column("use_spot", _YES, "spot price, or on demand"),
        Column("usd_per_h", _NUMBER, "price of a VM-hour, egress not included"),
        Column("requested_s", _NUMBER, "unix seconds; billed from here"),
        Column("ready_s", _NUMBER, "unix seconds"),
        Column("ended_s", _NUMBER, "unix seconds; NaN: still running"),
        Column("end_cause", _TEXT, "preempted, terminated, failed: ...; empty: unknown, or still running"),
        Column("epochs", _WHOLE, "measured epochs with a record of it; the next four columns are over these"),
        Column("samples", _NUMBER, "its own"),
        Column("calc_s", _NUMBER, "mean per epoch"),
        Column("comm_s", _NUMBER, "mean per epoch"),
        Column("granularity", _NUMBER, "mean of calc_s / comm_s"),
        Column("egress_bytes", _MAYBE_WHOLE, "all it sent in the run; <NA>: not counted"),
        Column("ingress_bytes", _MAYBE_WHOLE, "training data it read in the run"),
        Column("vm_usd", _NUMBER, "dollars for its running time"),
        Column("egress_usd", _NUMBER, "dollars for the traffic it sent, as measured"),
        Column("data_usd", _NUMBER, "dollars for the data it read from the store"),
        Column("estimated_usd", _NUMBER, "dollars for traffic it sent after its last record, if it was lost"),
    ),
    "traffic": (
        Column("src", _TEXT, "sending slot"),
        Column("dst", _TEXT, "slot, `store` or `monitor`"),
        Column(
            "class",
            _TEXT,
            "same_zone ... internet, store, checkpoint, control; determines the price (numbers.md)",
        ),
        Column("src_location", _TEXT, "cloud/region/zone"),
        Column("dst_location", _TEXT, "cloud/region/zone; None: not in a cloud"),
        Column("bytes", _WHOLE, "of the whole run"),
        Column("raw_bytes", _WHOLE, "as measured, not at full scale"),
        Column("usd", _NUMBER, "egress dollars of this link"),
    ),
    "costs": (
        Column("kind", _TEXT, "vm, egress, data, storage or controller"),
        Column("what", _TEXT, "what is billed"),
        Column("src", _TEXT, "slot or `store`"),
        Column("dst", _TEXT, "slot, `store` or `monitor`; empty for a VM's seconds"),
        Column("billed_s", _NUMBER, "seconds, where those are billed"),
        Column("billed_bytes", _NUMBER, "bytes, where those are billed"),
        Column("usd", _NUMBER, "dollars of this line"),
        Column("price", _TEXT, "source of the price, or why it is unknown"),
        Column("tier", _TEXT, "start of the price's tier; empty: single tier"),
        Column("month", _TEXT, "calendar month (UTC) for tiered prices; empty: not tiered"),
        Column("estimated", _YES, "a lost VM's bytes after its last record: not measured (numbers.md)"),
    ),
    "evaluations": (
        Column("epoch", _WHOLE, "number of the Hivemind epoch after which it was evaluated"),
        Column("at_s", _NUMBER, "when the last of its peers evaluated, unix seconds"),
        Column("peers", _WHOLE, "peers that evaluated; the value is their mean"),
        Column(
            "heldout_samples", _MAYBE_WHOLE, "samples evaluated on; <NA>: the number differs between peers"
        ),
        Column(
            "raw_trained_samples",
            _NUMBER,
            "samples trained on up to then, as measured; NaN: an epoch has no record",
        ),
        Column("trained_samples", _NUMBER, "the same at full scale"),
        Column("trained_s", _NUMBER, "seconds from the start of the training to the end of the epoch"),
        Column("usd", _NUMBER, "dollars spent until then, start-up included; NaN: unknown (numbers.md)"),
        Column(
            "figure",
            _TEXT,
            "name of the figure: loss, accuracy, perplexity, wer, nats_per_byte or the task's own",
        ),
        Column("value", _NUMBER, "of the figure; an accuracy is a share"),
        Column("lower_is_better", _MAYBE, "<NA>: the name does not tell"),
    ),
    "preemptions": (
        Column("vm", _TEXT, "the preempted VM"),
        Column("slot", _TEXT, "its slot"),
        Column("location", _TEXT, "cloud/region/zone"),
        Column("at_s", _NUMBER, "when it was lost, unix seconds, as measured"),
        Column("replaced_by", _TEXT, "the slot's next VM that trained; empty: none"),
        Column("lost_s", _NUMBER, "billed seconds since its last averaging round"),
        Column("startup_s", _NUMBER, "billed seconds of its replacement from request to first step"),
        Column("absent_s", _NUMBER, "from the last averaging round to the replacement's first step"),
        Column("state_s", _NUMBER, "part of startup_s: the download of the swarm's state"),
        Column("state_bytes", _MAYBE_WHOLE, "received from peers during the download; <NA>: not measured"),
        Column("lost_samples", _NUMBER, "the slot's rate x absent_s"),
        Column(
            "slowed_epochs",
            _TEXT,
            "epochs in which the other peers were slower, comma-separated; None: unknown",
        ),
        Column("slowed_s", _NUMBER, "by how much, summed over the other peers"),
        Column("lost_usd", _NUMBER, "dollars of lost_s"),
        Column("startup_usd", _NUMBER, "dollars of startup_s"),
        Column("slowed_usd", _NUMBER, "dollars of slowed_s"),
        Column("usd", _NUMBER, "all three"),
    ),
    "events": (
        Column("seq", _WHOLE, "number in the journal"),
        Column("at_s", _NUMBER, "unix seconds"),
        Column("kind", _TEXT, "kind of event"),
        Column("slot", _TEXT, "empty: the whole run"),
        Column("generation", _WHOLE, "-1: the whole run"),
        Column("vm", _TEXT, "name of the VM; empty: none"),
        Column("from_state", _TEXT, "state before"),
        Column("to_state", _TEXT, "state after"),
        Column("cause", _TEXT, "why"),
    ),
    "steps": (
        Column("vm", _TEXT, "name of the VM"),
        Column("step", _WHOLE, "number of the step"),
        Column("epoch", _WHOLE, "Hivemind epoch it belongs to"),
        Column("began_s", _NUMBER, "unix seconds"),
        Column("wall_s", _NUMBER, "wall time; the phases below add up to it"),
        Column("load_s", _NUMBER, "waiting for data"),
        Column("move_s", _NUMBER, "to the accelerator"),
        Column("forward_s", _NUMBER, "forward pass and loss"),
        Column("backward_s", _NUMBER, "backward pass"),
        Column("optimizer_local_s", _NUMBER, "optimizer step without synchronization"),
        Column("optimizer_sync_s", _NUMBER, "additional time of the synchronizing step"),
        Column("other_s", _NUMBER, "time outside all phases"),
        Column("samples", _WHOLE, "in this step"),
    ),
    "utilisation": (
        Column("vm", _TEXT, "name of the VM"),
        Column("slot", _TEXT, "its slot"),
        Column("location", _TEXT, "cloud/region/zone"),
        Column("began_s", _NUMBER, "unix seconds"),
        Column("wall_s", _NUMBER, "about 10 seconds"),
        Column("readings", _WHOLE, "one a second"),
        Column("scope", _TEXT, "what CPU and memory are of: vm, or peer (its processes; emulated VMs)"),
        Column("cores", _WHOLE, "of the machine"),
        Column("cpu_mean", _NUMBER, "share of all cores, 0 to 1"),
        Column("cpu_peak", _NUMBER, "highest second"),
        Column("memory_bytes", _MAYBE_WHOLE, "highest"),
        Column("memory_total_bytes", _MAYBE_WHOLE, "of the machine"),
        Column("sent_bytes", _MAYBE_WHOLE, "through the interface of the default route; <NA>: VMs share it"),
        Column("sent_peak_bytes_per_s", _NUMBER, "highest second"),
        Column("received_bytes", _MAYBE_WHOLE, "as sent_bytes"),
        Column("received_peak_bytes_per_s", _NUMBER, "highest second"),
        Column("gpus", _MAYBE_WHOLE, "GPUs of the VM; <NA>: no NVML, or VMs share the machine"),
        Column("gpu_mean", _NUMBER, "share of the time in which a kernel ran, mean over the GPUs"),
        Column("gpu_peak", _NUMBER, "highest second"),
        Column("gpu_memory_bytes", _MAYBE_WHOLE, "highest sum over the GPUs"),
        Column("gpu_memory_total_bytes", _MAYBE_WHOLE, "of all GPUs"),
    ),
    "study": (
        Column("label", _TEXT, "the experiment's label; None: not in the logs"),
        Column("run_id", _TEXT, "the run"),
        Column("model", _TEXT, "name of the network"),
        Column("peers", _MAYBE_WHOLE, "peers that trained"),
        Column("tbs", _MAYBE_WHOLE, "target batch size, samples"),
        *(_OF_SPS.get(key) or Column(key, _NUMBER, FIGURES[key].meaning) for key in REPLAY),
        Column("target", _TEXT, "local (namespaces), loopback, sky (rented VMs) or imported"),
        Column("emulated", _MAYBE, "whether distance and accelerators are emulated"),
        Column(
            "scales",
            _TEXT,
            "factors by which bytes, time and samples were scaled down, a dict; None: not scaled, or unknown",
        ),
        Column("host_contended", _MAYBE, "the host was too busy to keep the clock; <NA>: unknown"),
        Column("warnings", _TEXT, "list of sentences"),
    ),
}
