"""The section `limits` of an experiment: one record for the file, the plan and the controller's core.

It imports only the standard library, so that the pure core may hold it. A new key is a field here and the code of
`orchestrator.core` that keeps it; the parser, the plan, the JSON Schema and the journal follow from the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


def _limit(default: Any, meaning: str, plan: str, **bounds: float) -> Any:
    """Define a key: its meaning in the reference, its text in the plan ("{}": the value), and pydantic's bounds."""
    return field(default=default, metadata={"strict": True, "description": meaning, "plan": plan, **bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rate limits on requesting VMs. They always apply."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    vms_per_min: int = _limit(
        30, "Maximum number of VMs requested in any minute.", "{} VMs per minute", ge=1, le=1000
    )
    replacements_per_h: int = _limit(
        60,
        "Maximum number of lost VMs replaced in any hour, over all slots.",
        "{} replacements per hour",
        ge=0,
        le=10_000,
    )

    def shrunk(self, time_scale: float) -> dict[str, Any]:
        """Return the values by key for the controller's core, with seconds divided by `time_scale`."""
        return {
            key: value / time_scale if key.endswith("_s") and value is not None else value
            for key, value in asdict(self).items()
        }
