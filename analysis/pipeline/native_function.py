"""Native functions and their libraries, named alike whether a sampling or an instrumenting profiler found them."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Wheels on Linux carry libraries under names with a hash: libjpeg-6dc8d115.so.62.4.0, libopenblas-r0-0cf96a72.3.23.so.
_WHEEL_HASH = re.compile(r"-[0-9a-f]{8}(?=\.)")
_KERNEL_MODULE = re.compile(r"\[[\w-]+\]")
_ADDRESS = re.compile(r"0x[0-9a-f]+")

KERNEL = "kernel"
UNKNOWN = "unknown library"


@dataclass(frozen=True, slots=True, order=True)
class NativeFunction:
    """A function; without symbols, all functions of a library are one that is named after it."""

    name: str
    library: str


def native_function(symbol: str, file: str) -> NativeFunction:
    """Return the function for a profiler's symbol and file. `symbol` is "[unknown]", "???" or an address without symbols."""
    library = library_name(file)
    if symbol in ("", "[unknown]", "???") or _ADDRESS.fullmatch(symbol):
        return NativeFunction(f"{library} (no symbols)", library)
    return NativeFunction(symbol, library)


def library_name(file: str) -> str:
    """Return the name of a library or program: its file's name without folder and a wheel's hash."""
    file = file.removesuffix(" (deleted)")
    if file in ("", "[unknown]", "???"):
        return UNKNOWN
    if file.startswith("[kernel") or file.startswith("[guest.kernel"):
        return KERNEL
    if _KERNEL_MODULE.fullmatch(file) and file not in ("[vdso]", "[vsyscall]", "[heap]", "[stack]"):
        return KERNEL
    return _WHEEL_HASH.sub("", file.rsplit("/", 1)[-1])
