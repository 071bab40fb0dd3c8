"""The emulated cloud: one network namespace per VM, a user-space switch, and real processes."""

from cloud.local.host.guardian import reap
from cloud.local.options import LocalOptions, PreemptOptions, StoreOptions
from cloud.local.provider import LocalCloud

__all__ = ["LocalCloud", "LocalOptions", "PreemptOptions", "StoreOptions", "reap"]
