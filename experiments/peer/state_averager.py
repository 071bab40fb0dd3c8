"""hivemind's TrainingStateAverager that says which rounds the state it gives has been through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hivemind.averaging import DecentralizedAverager
from hivemind.optim.state_averager import TrainingStateAverager

from experiments.peer.lineage import FIRST

__all__ = ["LineageAverager"]


class _Reads(DecentralizedAverager):
    """Stands between Hivemind's two classes, where the downloaded metadata pass."""

    loaded_lineage: str | None = None  # of the last download, until somebody takes it

    def load_state_from_peers(self, wait: bool = True, timeout: float | None = None) -> Any:
        loaded = super().load_state_from_peers(wait, timeout)
        if isinstance(loaded, tuple) and isinstance(lineage := loaded[0].get("lineage"), str):
            self.loaded_lineage = lineage
        return loaded


class LineageAverager(TrainingStateAverager, _Reads):
    """Gives its `lineage` with the state, and keeps a downloaded one in `loaded_lineage`."""

    _rpc_handlers = None  # else Hivemind takes those of a class above

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lineage: Callable[[], str] = lambda: FIRST
        super().__init__(*args, **kwargs)

    def get_current_state(self) -> Any:
        """As Hivemind's; the metadata say the lineage too."""
        metadata, tensors, infos = super().get_current_state()
        return {**metadata, "lineage": self.lineage()}, tensors, infos
