"""The parser of callgrind's dumps."""

import pytest
from callgrind_text import DECODE, FLIP

from analysis.pipeline.callgrind_file import CallgrindFileError, read_callgrind
from analysis.pipeline.native_function import NativeFunction

_JPEG = NativeFunction("libjpeg.so.62.4.0 (no symbols)", "libjpeg.so.62.4.0")


def test_instructions_are_those_of_the_function_itself():
    assert read_callgrind(DECODE, "x") == {
        NativeFunction("unknown library (no symbols)", "unknown library"): 11,
        _JPEG: 19584 + 6144 + 19200 + 8448 + 6144 + 768,
        NativeFunction("free", "libc.so.6"): 21,
    }


def test_lines_with_relative_positions():
    assert read_callgrind(FLIP, "x") == {
        NativeFunction("ImagingFlipLeftRight", "_imaging.cpython-311-x86_64-linux-gnu.so"): 353047
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            DECODE[: DECODE.index("fn=(3844)\n")],
            "dump.1: its functions have 59531 instructions, its summary says 60320",
        ),
        ("", "its summary says None"),
        (DECODE.replace("events: Ir", "events: Dr"), "its first event is 'Dr', not Ir"),
        (DECODE.replace("events: Ir\n", ""), "instructions without 'events:'"),
        (DECODE.replace(" 0x000000000006c1f0", ""), r"name \(3844\) is not defined"),
        (DECODE.replace("0 19584", "0 x"), "dump.1:[0-9]+: '0 x' is not a line"),
    ],
)
def test_damage_is_refused(text, reason):
    with pytest.raises(CallgrindFileError, match=reason):
        read_callgrind(text, "dump.1")
