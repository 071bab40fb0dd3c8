"""Operations that fail in the server's processes."""

from __future__ import annotations

import os
import time

from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline


def act(data):
    """Do what the sample says: raise, hang, end the process or take memory, but only in a process of the server."""
    match data.decode():
        case "raise":
            raise RuntimeError("this one is bad")
        case "hang":
            time.sleep(600)
        case "exit":
            os._exit(3)
        case "allocate":
            data = data * (1 << 34)
        case "threads":
            return " ".join((os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]))
        case "print":
            print("in the middle of the protocol")
    return data.decode().upper()


PIPELINE = Pipeline("acting", {"text": ("txt",)}, (Op("act", f"{__name__}:act", "text", "bytes", "text"),))
