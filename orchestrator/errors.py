"""The command line's errors and, in one table, the exit code each error of any room ends with."""

from __future__ import annotations

from collections.abc import Sequence

from cloud.provider import (
    CredentialsError,
    InvalidRequestError,
    NoCapacityError,
    ProviderError,
    QuotaError,
)
from metrics.store.database import FencedError, SchemaError, StoreError


# OrchError                       1
# ├── RunFailedError              1  the run ended without its result
# ├── ControllerLostError         1  the controller died; the VMs live on: attach
# ├── RaySessionError             1  Ray does not start or does not answer
# ├── UsageError                  2  the command is wrong (the YAML's own errors are SpecError)
# ├── RefusedError                3  the budget or the user's answer said no
# ├── CapacityError               4  no capacity or quota
# ├── TeardownError               5  VMs or processes may be alive: .leftovers names them
# ├── HeldError                   6  another controller holds the run
# └── StalePlanError              7  the approved plan is not this experiment's plan any more
class OrchError(Exception):
    """Something the user can act on, in one sentence."""


class RunFailedError(OrchError):
    """The run ended without its result."""


class ControllerLostError(OrchError):
    """The run's controller is gone while its VMs may live on."""


class RaySessionError(OrchError):
    """Ray does not start or does not answer."""


class UsageError(OrchError):
    """The command asks for what cannot be."""


class RefusedError(OrchError):
    """The budget or the user's answer said no."""


class CapacityError(OrchError):
    """No place had the VMs that the experiment needs."""


class TeardownError(OrchError):
    """It is not proven that nothing is left."""

    def __init__(self, sentence: str, leftovers: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.leftovers = tuple(leftovers)


class HeldError(OrchError):
    """Another controller holds the run."""


class StalePlanError(OrchError):
    """The plan that was approved is not this experiment's plan any more."""


# The first class that fits decides. 0 is done; 130 is Ctrl-C (KeyboardInterrupt).
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, 2),
    (RefusedError, 3),
    (CapacityError, 4),
    (TeardownError, 5),
    (HeldError, 6),
    (StalePlanError, 7),
    (OrchError, 1),
    (FencedError, 6),
    (SchemaError, 2),
    (StoreError, 1),
    (NoCapacityError, 4),
    (QuotaError, 4),
    (CredentialsError, 2),
    (InvalidRequestError, 2),
    (ProviderError, 1),
    (KeyboardInterrupt, 130),
)

# What a run's final `status` in run.db means for the exit code.
STATUS_CODES: dict[str, int] = {"done": 0, "failed": 1, "stopped": 3, "budget": 3, "no_capacity": 4}


def exit_code(error: BaseException) -> int:
    """The exit code an error ends the command with; 1 for what the table does not know."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
