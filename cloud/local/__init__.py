"""The emulated cloud: one network namespace per VM, one user-space switch, real processes."""

from cloud.local.host.guardian import reap
from cloud.local.options import LocalOptions, PreemptOptions, StoreOptions
from cloud.local.provider import LocalCloud

__all__ = ["LocalCloud", "LocalOptions", "PreemptOptions", "StoreOptions", "reap"]
