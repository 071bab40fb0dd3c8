"""SIGTERM and SIGHUP end a command like Ctrl-C, once."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.cli.interrupts import ended_like_ctrl_c


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_later_ones_do_not(number: signal.Signals):
    before = signal.getsignal(number)
    cleaned = False
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():  # noqa: PT012 - the signal comes between the lines
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            cleaned = True
    assert cleaned
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_like_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
