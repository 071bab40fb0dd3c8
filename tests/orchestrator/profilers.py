"""Programs that take the place of perf, valgrind and vgdb on PATH: they run the command, and print recorded text."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from callgrind_text import DECODE, FLIP

# A sample in the middle of each recorded span of the run, and two where LotusMap's runs are; before it, one of the start.
_PERF = """\
import json, subprocess, sys
from pathlib import Path
if sys.argv[1] == "stat":
    event = sys.argv[5]
    text = {"cycles": "<not supported>;;cycles;0;100.00;;", "page-faults": "48;;page-faults;603702;100.00;;",
            "major-faults": "0;;major-faults;603702;100.00;;"}
    sys.exit(print(text[event], file=sys.stderr) if event in text else "event syntax error: 'nothing'")
if sys.argv[1] == "record":
    sys.exit(subprocess.call(sys.argv[sys.argv.index("--") + 1 :]))
from experiments.pipeline.trace_format import Code, read_thread
lines = ["7/7 0.000000001: 7fa0 PyImport_Import (/usr/lib/libpython3.11.so.1.0)"]
libraries = {
    "decode": "7fa568cef690 [unknown] (/venv/pillow.libs/libjpeg-6dc8d115.so.62.4.0)",
    "flip": "7fa56dac839c ImagingFlipLeftRight (/venv/PIL/_imaging.cpython-311-x86_64-linux-gnu.so)",
}
shared = "7fa570d8bb75 __memmove_avx512_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)"
with_events = "event" in sys.argv[sys.argv.index("-F") + 1]
for file in Path().glob("trace*/*.trace"):
    thread = read_thread(file.read_bytes(), str(file))
    who = f"{thread.header.pid}/{thread.header.tid}"
    for number, event in enumerate(thread.events):
        at = event.start_ns + event.wall_ns // 2
        where = libraries.get(event.name, shared)
        moment = f"{who} {at // 10**9}.{at % 10**9:09d}:"
        lines.append(f"{moment} {'1000000 cpu-clock: ' if with_events else ''}{where}")
        if with_events:
            lines.append(f"{moment} 270 page-faults: {where}")
        if number == 0 and not with_events:
            lines.append(f"{moment} {shared}")
print("\\n".join(lines))
"""
_VALGRIND = f"""\
import os, subprocess, sys
from pathlib import Path
command = [a for a in sys.argv[1:] if not a.startswith("--")]
code = subprocess.call(command)
pickled = Path("job.pickle").read_bytes()
import pickle
job = pickle.loads(pickled)
texts = {{"decode": {DECODE!r}, "flip": {FLIP!r}}}
names = [op.name for _ in job.samples for op in job.pipeline.ops]
for number, name in enumerate(names, 1):
    Path(f"callgrind.out.{{number}}").write_text(texts[name])
Path("callgrind.out").write_text("")
sys.exit(code)
"""
RECORDING: Mapping[str, str] = {"perf": _PERF, "valgrind": _VALGRIND, "vgdb": ""}


def install(folder: Path, programs: Mapping[str, str]) -> Path:
    """Write programs (Python code by name) to a folder that can take the place of PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in programs.items():
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder
