"""A provider without a cloud: VMs are folders with a JSON file each; nothing runs."""

import json
import os
import time
from pathlib import Path

from cloud.provider import LaunchRequest, NoCapacityError, Observed, Offer


class ToyCloud:
    """Stateless in this process, like a real provider: all is in `<run folder>/toy/`."""

    name = "toy"

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "toy"
        self._run_folder = run_folder

    def offers(self, location: str, accelerator: str, use_spot: bool) -> list[Offer]:
        return [Offer(location, "toy", accelerator, use_spot, None, "toys are free")]

    def request(self, request: LaunchRequest) -> None:
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "requests.log").open("a") as log:
            log.write(f"{request.vm}\n")
        with (self._folder / "profiles").open("a") as log:
            log.write(f"{os.environ.get('TOY_PROFILE')} {os.environ.get('TOY_OF_RAY')}\n")
        if (self._folder / "full").exists():
            raise NoCapacityError("no toys left")
        path = self._folder / f"{request.vm}.json"
        if not path.exists():
            now = time.time()
            self._write(
                path,
                {"state": "running", "requested": now, "ended": None, "location": request.offer.location},
            )

    def observe(self) -> list[Observed]:
        return [self._observed(path) for path in sorted(self._folder.glob("*.json"))]

    def terminate(self, vm: str) -> None:
        path = self._folder / f"{vm}.json"
        if path.exists():
            row = json.loads(path.read_text())
            if row["state"] == "running":
                self._write(path, {**row, "state": "terminated", "ended": time.time()})

    def collect(self, vm: str) -> str:
        return str(self._run_folder / "vms" / vm)

    def close(self) -> None:
        for path in self._folder.glob("*.json"):
            self.terminate(path.stem)

    def _observed(self, path: Path) -> Observed:
        row = json.loads(path.read_text())
        phase = (self._folder / "phase").read_text() if (self._folder / "phase").exists() else "training"
        status = {"phase": phase, "maddr": f"/ip4/127.0.0.1/tcp/1/p2p/{path.stem}", "error": None}
        return Observed(
            vm=path.stem, state=row["state"], location=row["location"], address="127.0.0.1",
            requested_at_s=row["requested"], ready_at_s=row["requested"], ended_at_s=row["ended"],
            cause="", notice_at_s=None, status=status,
        )  # fmt: skip

    def _write(self, path: Path, row: dict[str, object]) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(row))
        fresh.replace(path)
