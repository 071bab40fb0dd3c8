"""Checkpoints of runs on rented VMs whose experiment does not mention them: stored if possible, otherwise a warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cloud.targets import TARGETS
from experiments.checkpoints.layout import run_prefix
from experiments.emulation.accelerators import is_padded
from experiments.schema.checkpoint import Checkpoint
from experiments.schema.models import ExperimentSpec
from orchestrator.launch.plan_run import RunPlan, approved_plan, host_cores
from orchestrator.launch.rent_checks import aws_buckets, aws_written, has_aws_places
from orchestrator.launch.secret_values import secret_values
from orchestrator.launch.store_client import client_options

if TYPE_CHECKING:
    from experiments.checkpoints.store import CheckpointStore

DEFAULT = Checkpoint(every_s=3600.0, required=False)
"""An hour of work is lost at most; a checkpoint of 6.7 GB costs about $0.6 of egress."""

PROBED = "preflight"  # in place of a run's id
_CONNECT_S = 5.0
_OFF = "no checkpoints are stored, so the model is not kept, and a run that loses all peers starts over:"


def with_default_checkpoints(spec: ExperimentSpec, on: str) -> tuple[ExperimentSpec, str]:
    """The experiment with `DEFAULT`, if it applies, and a warning if it cannot; otherwise the experiment as it is, and "".

    `spec`: as it was loaded, so that it is known whether its file has the key `checkpoint`, which may be null. The default
    applies to rented VMs that train the model itself, not a padded stand-in.
    """
    if not TARGETS[on].rents or "checkpoint" in spec.model_fields_set or is_padded(spec):
        return spec, ""
    if spec.data.private:
        return spec, (
            f"{_OFF} with data.private: true, whether they can be stored is not checked from here; add a checkpoint section "
            "to store them, or checkpoint: null to store none"
        )
    return spec.model_copy(update={"checkpoint": DEFAULT}), ""


def default_note(spec: ExperimentSpec) -> tuple[str, ...]:
    """What a plan says of checkpoints that are not required; nothing of others."""
    if spec.checkpoint is None or spec.checkpoint.required:
        return ()
    return (
        f"checkpoints are stored below {spec.checkpoint.folder(spec.data.shards)} if the launch can write there, and otherwise "
        "the run goes on without them; checkpoint: null stores none, docs/checkpoints.md",
    )


def unaffordable_words(spec: ExperimentSpec) -> str:
    """The warning of a plan that keeps its limits in dollars only without the checkpoints that are not required."""
    return (
        f"{_OFF} the limits in dollars of {spec.name} cannot be kept with what sending them may cost; add prices or raise the "
        "limits, or set checkpoint: null"
    )


def without_checkpoints(plan: RunPlan, warning: str) -> RunPlan:
    """The same plan without checkpoints, with a warning that the run keeps. Its estimates stay, as upper bounds."""
    spec = plan.spec.model_copy(update={"checkpoint": None})
    core = plan.core and approved_plan(spec, plan.on, plan.document, cores=host_cores()).core
    return with_warning(
        replace(plan, spec=spec, core=core, document={**plan.document, "checkpoints": None}), warning
    )


def with_warning(plan: RunPlan, warning: str) -> RunPlan:
    """The plan with a warning, shown with it, in the status and in the report; unchanged if it is ""."""
    if not warning:
        return plan
    shown = [warning, *plan.document.get("warnings", ())]
    kept = (*plan.warnings, f"{warning[0].upper()}{warning[1:].rstrip('.')}.")
    return replace(
        plan, document={**plan.document, "warnings": shown, "kept_warnings": [*kept]}, warnings=kept
    )


def with_writable_checkpoints(plan: RunPlan) -> RunPlan:
    """Check the place of checkpoints that are not required; without them, and with a warning, if it cannot be used.

    Stores, lists and deletes an object there. Raises CredentialsError, TransientError (AWS does not tell which roles exist).
    """
    spec = plan.spec
    if spec.checkpoint is None or spec.checkpoint.required:
        return plan
    if plan.target.rents and spec.data.private:
        return plan  # given by the experiment itself: its place cannot be checked from here
    if not plan.target.rents and not spec.data.endpoint:
        return plan  # the embedded store
    why = _unusable(plan) or _role_problem(plan)
    return without_checkpoints(plan, f"{_OFF} {why}") if why else plan


def checkpoint_store(plan: RunPlan, keys: Mapping[str, str]) -> CheckpointStore:
    """The place of the checkpoints, with a short timeout. `keys`: of the store; empty: those that boto3 finds."""
    from experiments.checkpoints.store import CheckpointStore

    spec = plan.spec
    assert spec.checkpoint is not None
    options = {**client_options(spec, keys), "connect_timeout_s": _CONNECT_S, "attempts": 2}
    prefix = run_prefix(spec.checkpoint.folder(spec.data.shards), PROBED)
    return CheckpointStore(prefix, {"endpoint": spec.data.endpoint, **options})


def _unusable(plan: RunPlan) -> str:
    """Why checkpoints cannot be stored and found again; "" if they can."""
    from cloud.storage.errors import StorageError
    from experiments.checkpoints.errors import CheckpointError

    store = checkpoint_store(plan, secret_values(plan.spec) if plan.target.rents else {})
    try:
        store.check_writable()
        store.list()
    except (CheckpointError, StorageError) as error:
        return str(error)
    return ""


def _role_problem(plan: RunPlan) -> str:
    """Why VMs on AWS that use the store by their role cannot write; "" if they can, or if the launch creates the role.

    A role that exists without the right to write may be an administrator's, whose user cannot create another.
    """
    written = aws_written(plan.spec)
    if not plan.target.rents or not written or not has_aws_places(plan.spec):
        return ""
    from cloud.sky.aws.role import is_there

    buckets = aws_buckets(plan.spec)
    if is_there(buckets, written=written) or not is_there(buckets):
        return ""
    return (
        f"the account has a role for these VMs that reads {', '.join(buckets)}, but none that may also write {', '.join(written)}; "
        "add a checkpoint section, with which the launch creates one"
    )
