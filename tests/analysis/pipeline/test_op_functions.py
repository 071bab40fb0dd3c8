"""The join of samples and spans."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.native_function import NativeFunction
from analysis.pipeline.op_functions import Span, join
from analysis.pipeline.perf_script import PerfSample

_MOVE = NativeFunction("memmove", "libc.so.6")
_JPEG = NativeFunction("jpeg", "libjpeg.so")


def _sample(tid, time_ns, function=_MOVE, weight=1):
    return PerfSample(1, tid, time_ns, "cpu-clock", weight, function)


def test_shared_functions_are_split_by_sample():
    spans = [Span(1, "decode", 10, 20), Span(1, "crop", 20, 30), Span(1, "decode", 35, 40)]
    samples = [_sample(1, t) for t in (10, 19, 20, 29, 30, 35)] + [_sample(1, 36, _JPEG)]
    joined = join(samples, spans, 0, 100)
    assert joined.ops == {"decode": Counter({_MOVE: 3, _JPEG: 1}), "crop": Counter({_MOVE: 2})}
    assert joined.between == Counter({_MOVE: 1})


def test_threads_are_kept_apart():
    spans = [Span(1, "decode", 10, 20), Span(2, "crop", 10, 20)]
    joined = join([_sample(1, 15), _sample(2, 15, _JPEG), _sample(3, 15), _sample(2, 21)], spans, 0, 100)
    assert joined.ops == {"decode": Counter({_MOVE: 1}), "crop": Counter({_JPEG: 1})}
    assert joined.other_threads == Counter({_MOVE: 1})
    assert joined.between == Counter({_MOVE: 1})


def test_samples_before_and_after_the_measured_time_are_only_counted():
    joined = join([_sample(1, t, weight=5) for t in (9, 10, 19, 20)], [Span(1, "decode", 5, 25)], 10, 20)
    assert joined.ops["decode"].total() == 10
    assert joined.outside == 10


@st.composite
def _traces(draw):
    spans = []
    for tid in (1, 2):
        edges = sorted(draw(st.sets(st.integers(0, 60), max_size=10)))
        for start, end in pairwise(edges):
            if draw(st.booleans()):
                spans.append(Span(tid, draw(st.sampled_from(["decode", "crop", "flip"])), start, end))
    samples = st.builds(
        _sample, st.integers(1, 3), st.integers(0, 60), st.sampled_from([_MOVE, _JPEG]), st.integers(0, 9)
    )
    return spans, draw(st.lists(samples, max_size=30)), draw(st.integers(0, 30)), draw(st.integers(30, 61))


@given(_traces())
def test_each_sample_counts_once_and_for_the_span_that_holds_it(trace):
    spans, samples, start, end = trace
    joined = join(samples, spans, start, end)
    assert joined.total == sum(sample.weight for sample in samples)
    for op, functions in joined.ops.items():
        for function in (_MOVE, _JPEG):
            assert functions[function] == sum(
                sample.weight
                for sample in samples
                if sample.function == function and start <= sample.time_ns < end
                for span in spans
                if span.op == op and span.tid == sample.tid and span.start_ns <= sample.time_ns < span.end_ns
            )
