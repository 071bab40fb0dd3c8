"""Speak words with the eSpeak NG library: `python espeak_child.py LIBRARY DATA VOICE SPEED WORD...`.

Writes for each word its number of bytes (4, little-endian) and 16-bit samples at the library's rate to stdout, after the
rate (4 bytes). A process of its own for each voice and speed: the library's sound depends on what it said before.
"""

from __future__ import annotations

import ctypes
import sys

_SYNCHRONOUS = 2
_RATE, _UTF8 = 1, 1
_SEED = 1


def main(library: str, data: str, voice: str, speed: str, *words: str) -> int:
    lib = ctypes.CDLL(library)
    rate = lib.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), 0)
    if rate <= 0 or lib.espeak_SetVoiceByName(voice.encode()) != 0:
        sys.stderr.write(f"eSpeak NG has no data in {data} or no voice {voice}\n")
        return 1
    # From version 1.52 on, the library accepts a seed for its noise; without one it uses the time.
    lib.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
    heard: list[bytes] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def hear(wave: ctypes._Pointer[ctypes.c_short], count: int, _: object) -> int:
        if wave and count > 0:
            heard.append(ctypes.string_at(wave, 2 * count))
        return 0

    lib.espeak_SetSynthCallback(hear)
    lib.espeak_SetParameter(_RATE, int(speed), 0)
    out = sys.stdout.buffer
    out.write(rate.to_bytes(4, "little"))
    for word in words:
        heard.clear()
        text = word.encode() + b"\0"
        lib.espeak_Synth(text, len(text), 0, 1, 0, _UTF8, None, None)
        lib.espeak_Synchronize()
        sound = b"".join(heard)
        out.write(len(sound).to_bytes(4, "little") + sound)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
