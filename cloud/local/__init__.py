"""The emulated cloud: one network namespace per VM, one user-space switch, real processes."""

from cloud.local.client import LocalCloud
from cloud.local.guardian import reap
from cloud.local.options import LocalOptions, PreemptOptions, StoreOptions

__all__ = ["LocalCloud", "LocalOptions", "PreemptOptions", "StoreOptions", "reap"]
