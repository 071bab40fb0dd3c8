"""Errors of the command line, and the exit code of every error."""

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
# ├── ControllerLostError         1  the controller died; the VMs may still run: attach
# ├── RaySessionError             1  Ray does not start or does not respond
# ├── UsageError                  2  the command is invalid (errors in the YAML are SpecError)
# ├── RefusedError                3  refused by the budget or by the user
# ├── CapacityError               4  no capacity or quota
# ├── TeardownError               5  VMs or processes may still run: .leftovers names them
# ├── HeldError                   6  another controller holds the run
# └── StalePlanError              7  the approved plan no longer matches this experiment
class OrchError(Exception):
    """An error that the user can act on; its message is one sentence."""


class RunFailedError(OrchError):
    """The run ended without its result."""


class ControllerLostError(OrchError):
    """The run's controller is gone, and its VMs may still run."""


class RaySessionError(OrchError):
    """Ray does not start or does not respond."""


class UsageError(OrchError):
    """The command is invalid, or asks for something impossible."""


class RefusedError(OrchError):
    """The budget or the user refused the launch."""


class CapacityError(OrchError):
    """No place had capacity for the VMs that the experiment needs."""


class TeardownError(OrchError):
    """VMs or processes are left, or may be left, after a teardown."""

    def __init__(self, sentence: str, leftovers: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.leftovers = tuple(leftovers)


class HeldError(OrchError):
    """Another controller holds the run."""


class StalePlanError(OrchError):
    """The approved plan no longer matches this experiment."""


# The first matching class decides. 0 is success; 130 is Ctrl-C (KeyboardInterrupt).
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

# Exit code by a run's final `status` in run.db.
STATUS_CODES: dict[str, int] = {"done": 0, "failed": 1, "stopped": 3, "budget": 3, "no_capacity": 4}


def exit_code(error: BaseException) -> int:
    """The exit code for an error; 1 for errors that are not in the table."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
