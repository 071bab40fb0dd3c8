"""Utilisation and memory of this VM's GPUs, by NVML (`nvidia-ml-py`, and the driver's library)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Warn = Callable[[str, str], None]  # (key, text), as `Status.warn`


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of the VM at one moment."""

    count: int
    share: float  # of the driver's last sample period in which a kernel ran; mean over the GPUs, 0 to 1
    memory_bytes: int  # used, sum over the GPUs
    memory_total_bytes: int


class Gpus:
    """Reads the GPUs that NVML lists, whichever this process uses."""

    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module `pynvml`, initialised. Raises its NVMLError."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> GpuReading:
        """Read all GPUs. Raises OSError if one does not answer (it fell off the bus, for example)."""
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
            memory = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        return GpuReading(
            len(rates),
            sum(rates) / len(rates) / 100,
            sum(m.used for m in memory),
            sum(m.total for m in memory),
        )


def open_gpus(warn: Warn) -> Gpus | None:
    """Find this VM's GPUs. Returns None without NVIDIA's driver, without a GPU, or without `nvidia-ml-py`."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        found = Gpus(pynvml)
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        warn("gpu utilisation", f"the utilisation of the GPUs is unknown: NVML: {error}")
        return None
    return found if len(found) else None
