"""The parser of perf script, on lines that perf 6.1 printed."""

import pytest

from analysis.pipeline.native_function import NativeFunction, library_name, native_function
from analysis.pipeline.perf_script import PerfScriptError, event_name, read_perf_script

_PRINTED = """\
30787/30787 51392.513674229:      7fa56dac839c _ImagingResampleHorizontal_8bpc (/venv/PIL/_imaging.cpython-311-x86_64-linux-gnu.so)
30787/30787 51392.520731055:      7fa570d8bb75 __memmove_avx512_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)
30787/30788 51392.524712590:  ffffffff821eb0e7 clear_page_erms ([kernel.kallsyms])
30787/30787 51392.525712681:      7fa568cef690 [unknown] (/venv/pillow.libs/libjpeg-6dc8d115.so.62.4.0)
"""
_WITH_EVENTS = """\
30808/30808 51394.100845483:        270 page-faults:      7fba1b58bb75 __memmove_avx512_unaligned_erms (/usr/lib/libc.so.6)
30808/30808 51394.129520612:    1000000   cpu-clock:      7fba1b7c070c _PyTypes_Fini (/usr/lib/libpython3.11.so.1.0)
30808/30808 51394.130054963:        288 page-faults:u:      7fba189995c0 [unknown] (/usr/lib/libstdc++.so.6.0.30)
"""


def test_samples_have_thread_time_and_function():
    samples = list(read_perf_script(_PRINTED.splitlines(keepends=True)))
    assert [(s.pid, s.tid) for s in samples] == [
        (30787, 30787),
        (30787, 30787),
        (30787, 30788),
        (30787, 30787),
    ]
    assert [s.time_ns for s in samples][:2] == [51392_513674229, 51392_520731055]
    assert [(s.event, s.weight) for s in samples] == [("cpu-clock", 1)] * 4
    assert [s.function for s in samples] == [
        NativeFunction("_ImagingResampleHorizontal_8bpc", "_imaging.cpython-311-x86_64-linux-gnu.so"),
        NativeFunction("__memmove_avx512_unaligned_erms", "libc.so.6"),
        NativeFunction("clear_page_erms", "kernel"),
        NativeFunction("libjpeg.so.62.4.0 (no symbols)", "libjpeg.so.62.4.0"),
    ]


def test_events_and_periods_are_read():
    samples = list(read_perf_script(_WITH_EVENTS.splitlines()))
    assert [(s.event, s.weight) for s in samples] == [
        ("page-faults", 270),
        ("cpu-clock", 1000000),
        ("page-faults", 288),
    ]
    assert samples[2].function == NativeFunction("libstdc++.so.6.0.30 (no symbols)", "libstdc++.so.6.0.30")


@pytest.mark.parametrize(
    ("end", "symbol", "library"),
    [
        ("f(int) (/usr/lib/x.so)", "f(int)", "x.so"),
        ("g<(anonymous namespace)::T>(int) (/usr/lib/x.so)", "g<(anonymous namespace)::T>(int)", "x.so"),
        ("f (/tmp/x.so (deleted))", "f", "x.so"),
        ("__vdso_clock_gettime ([vdso])", "__vdso_clock_gettime", "[vdso]"),
        ("nf_hook ([nf_conntrack])", "nf_hook", "kernel"),
        ("[unknown] ([unknown])", "unknown library (no symbols)", "unknown library"),
    ],
)
def test_symbols_and_files_with_brackets(end, symbol, library):
    [sample] = read_perf_script([f"1/2 3.000000004:  7fa0 {end}\n"])
    assert sample.function == NativeFunction(symbol, library)


def test_hidden_addresses_of_the_kernel_are_the_kernels():
    [sample] = read_perf_script(["1/2 3.000000004:  ffffffff821eb0e7 [unknown] ([unknown])"])
    assert sample.function == NativeFunction("kernel (no symbols)", "kernel")


def test_another_line_is_refused_with_its_text():
    with pytest.raises(PerfScriptError, match=r"not a sample \('python 30787 51392"):
        list(read_perf_script(["python 30787 51392.513674: cpu-clock: 7fa f (/x)"]))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/venv/numpy.libs/libscipy_openblas64_-32a4b2a6.so", "libscipy_openblas64_.so"),
        ("/venv/x.libs/libopenblas-r0-0cf96a72.3.23.so", "libopenblas-r0.3.23.so"),
        ("/usr/lib/libm-2.31.so", "libm-2.31.so"),
    ],
)
def test_hashes_of_wheels_are_removed(file, name):
    assert library_name(file) == name
    assert native_function("0x000000000006c0a0", file).name == f"{name} (no symbols)"


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("cpu-clock:u", "cpu-clock"),
        ("cycles:ppp", "cycles"),
        ("sched:sched_switch", "sched:sched_switch"),
        ("cycles", "cycles"),
    ],
)
def test_modifiers_of_events_are_left_out(event, name):
    assert event_name(event) == name
