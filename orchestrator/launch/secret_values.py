"""Values of an experiment's secrets, from the environment of `orch`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from experiments.schema.models import ExperimentSpec
from orchestrator.errors import UsageError

OWN_SECRET = "ORCH_SECRET_"  # prefix of a secret's name in the environment


def missing_secrets(spec: ExperimentSpec, environ: Mapping[str, str]) -> str:
    """Say which secrets have no value, and what to do; "" for none."""
    missing = sorted(n for n in spec.secrets if n not in environ and not environ.get(OWN_SECRET + n))
    if not missing:
        return ""
    return (
        f"secrets {', '.join(missing)}: not set in the environment of `orch`; export them, "
        f"as {OWN_SECRET}NAME if NAME is also used for the cloud (AWS_ACCESS_KEY_ID)"
    )


def secret_values(spec: ExperimentSpec) -> dict[str, str]:
    """Values of the experiment's secrets, each from ORCH_SECRET_NAME, or else from NAME.

    The prefix is for names that `orch` itself uses, such as AWS_ACCESS_KEY_ID, if the store's value differs
    from the cloud's. Raises UsageError if neither variable is set.
    """
    missing = missing_secrets(spec, os.environ)
    if missing:
        raise UsageError(f"{spec.name}: {missing}")
    return {n: os.environ.get(OWN_SECRET + n) or os.environ[n] for n in spec.secrets}
