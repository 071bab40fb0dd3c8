"""Operations on a run's clusters that all parts of the provider share, robust against a lost API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from cloud.clock import run_clock
from cloud.sky import records
from cloud.sky.skypilot import sdk, server
from cloud.sky.skypilot.errors import is_gone, is_server_lost, translate

SERVER_TRIES = 4
_ARRIVES_S = 30.0
_T = TypeVar("_T")


class Clusters:
    """The clusters of one run: `folder` holds a record of each VM, `home` the state of SkyPilot's server."""

    def __init__(self, run_folder: Path) -> None:
        self.run_folder = run_folder.absolute()
        self.folder = self.run_folder / "sky"
        self.home = self.run_folder.parent.parent

    def now_s(self) -> float:
        """Unix time by the run's clock."""
        return run_clock(self.run_folder)()

    @property
    def closed(self) -> bool:
        """Whether the run is closed, so that nothing is launched any more."""
        return (self.folder / "closed").exists()

    @property
    def proven(self) -> bool:
        """Whether two lists after closing have shown that nothing is left."""
        return (self.folder / "proven").exists()

    def call(self, doing: str, call: Callable[[], _T]) -> _T:
        """Make a repeatable call; if the API server is lost, restart it and try once more. Raises ProviderError."""
        try:
            return call()
        except Exception as error:
            if is_server_lost(error):
                server.ensure(self.home)
                try:
                    return call()
                except Exception as again:
                    raise translate(again, doing) from again
            raise translate(error, doing) from error

    def down(self, cluster: str) -> None:
        """End a cluster; do nothing if it does not exist. Raises ProviderError."""
        server.ensure(self.home)
        for attempt in range(SERVER_TRIES):
            try:
                sdk.down(cluster)
                return
            except Exception as error:
                # SkyPilot does not know the cluster of a launch that it has just begun and that would create it later.
                if is_gone(error) and not self._cancel_launch(cluster):
                    return
                if is_gone(error) and attempt + 1 < SERVER_TRIES:
                    continue
                if is_server_lost(error) and attempt + 1 < SERVER_TRIES:
                    server.ensure(self.home)
                    continue
                raise translate(error, f"ending {cluster}") from error

    def await_launch(self, cluster: str) -> None:
        """Wait until SkyPilot knows of a launch that a dead process sent; give up after 30 s, since it was never sent.

        Ending the cluster before that would end nothing, and the launch would create it afterwards.
        """
        deadline = time.monotonic() + _ARRIVES_S
        while time.monotonic() < deadline:
            server.ensure(self.home)
            doing = f"looking for the launch of {cluster}"
            if self.call(doing, lambda: sdk.pending_launch(cluster) or sdk.find(cluster)):
                return
            time.sleep(1.0)

    def _cancel_launch(self, cluster: str) -> bool:
        """Cancel a launch of the cluster that is in progress; returns whether there was one."""
        waiting = self.call(f"ending {cluster}", lambda: sdk.pending_launch(cluster))
        if waiting is None:
            return False
        self.call(f"ending {cluster}", lambda: sdk.cancel(waiting))
        return True

    def mark_ended(self, vm: str) -> None:
        """Record that a VM was ended on request."""
        with records.lock(self.folder, vm, "record"):
            record = records.read(self.folder, vm)
            if record is not None and not record.end_state:
                records.write(
                    self.folder,
                    replace(record, end_state="terminated", ended_at_s=self.now_s(), cause="terminated"),
                )
