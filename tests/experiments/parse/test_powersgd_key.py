"""`compression: powersgd:<rank>` in the plan: bytes, ballast, and where it cannot be used."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.reserve import epoch_egress_usd
from cloud.prices.book import load as load_book
from experiments.averaging.methods import UnknownMethodError, compression_of
from experiments.averaging.model_shapes import model_shapes
from experiments.averaging.powersgd import factored, factors_of, sent
from experiments.catalog import models
from experiments.emulation.ballast import ballast, largest_scale
from experiments.emulation.scales import full_size, resolve_emulation
from experiments.parse.load import load
from experiments.schema.errors import SpecError

RANKS = st.integers(1, 64)
MODELS = sorted(name for name, model in models().items() if model.kind != "digits")


def test_the_shapes_add_up_to_the_models() -> None:
    for name, model in models().items():
        assert sum(n * math.prod(shape) for shape, n in model_shapes()[name]) == model.parameters, name


def test_a_rank_is_read() -> None:
    assert [compression_of(f"powersgd:{r}").rank for r in (1, 4, 64)] == [1, 4, 64]
    for wrong in (
        "powersgd",
        "powersgd:",
        "powersgd:0",
        "powersgd:04",
        "powersgd:65",
        "powersgd:4 ",
    ):
        with pytest.raises(
            UnknownMethodError, match=r"neither none nor float16 .* nor powersgd:<rank> with a rank"
        ):
            compression_of(wrong)
    assert compression_of("float16").rank is None


def test_what_is_factored() -> None:
    assert factored((1024, 4096), 4) == (1024, 4096)
    assert factored((512, 256, 3, 3), 4) == (512, 2304)
    assert factored((4096,), 1) is None
    assert factored((16, 16), 4) == (16, 16)  # both factors: half of it
    assert factored((16, 15), 4) is None


def test_nlp_by_hand() -> None:
    # 24 layers of 4 x 1024^2 and 2 x 1024 x 4096, embeddings and a head: rows 472,723 + 1 whole row of token types.
    found = factors_of("RoBERTaXLM", 4)
    rows = 250_002 + 514 + 97 * 1024 + 24 * (1024 + 4096)
    columns = 2 * 1024 + 97 * 1024 + 24 * (1024 + 4096)
    assert (found.rows, found.columns) == (rows, columns)
    assert found.values + found.whole == 560_142_482
    sends = {
        name: compression_of(name).gradient_bytes("RoBERTaXLM", 560_142_482)
        for name in ("powersgd:4", "none", "float16", "uniform8bit")
    }
    assert sends.pop("powersgd:4") == 2 * (4 * (rows + columns) + found.whole) == 6_727_108
    # 8 bits: 256 levels and a count, 1032 bytes, with each part of at most 512 Ki values; a tensor has at least one part.
    # Embeddings 489 + 2 + 1 (token types), 97 square matrices of 2, 2 x 24 of 8, and 246 vectors.
    parts = 489 + 2 + 1 + 97 * 2 + 48 * 8 + 246
    assert sends == {
        "none": 4 * 560_142_482, "float16": 2 * 560_142_482, "uniform8bit": 560_142_482 + 1032 * parts,
    }  # fmt: skip


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.integers(1, 30)), max_size=8
    ),
    RANKS,
)
def test_factored_and_unfactored_values_add_up(shapes: list[tuple[list[int], int]], rank: int) -> None:
    found, total = sent(shapes, rank), sum(n * math.prod(shape) for shape, n in shapes)
    assert found.values + found.whole == total
    assert found.whole <= found.wire <= total
    assert 2 * (found.wire - found.whole) <= found.values
    assert sent(shapes, min(64, rank + 1)).wire >= found.wire


@given(st.sampled_from(MODELS), RANKS, st.data())
def test_the_ballast_is_sent_as_the_model_is(model: str, rank: int, data: st.DataObject) -> None:
    compression = compression_of(f"powersgd:{rank}")
    most = largest_scale(model, compression)
    scale = data.draw(st.floats(1, most))
    made, full = ballast(model, compression, scale), factors_of(model, rank)
    assert made is not None
    learns = model_shapes()["digits"]
    vectors = made.parameters - models()["digits"].parameters - sum(m * n for m, n in made.matrices)
    assert vectors >= 0
    own = sent([*learns, *((sides, 1) for sides in made.matrices), ((vectors,), 1)], rank)
    assert own.wire == round(full.wire / scale)
    # of ranks above 50, near the largest scale, up to 6.4 % are missing: matrices too small to be factored
    assert made.parameters == pytest.approx(models()[model].parameters / scale, rel=0.08)
    # a matrix too small to be factored is left out, and its share of the factors is sent whole
    assert own.rows == pytest.approx(full.rows / scale, rel=0.3, abs=8)
    assert own.columns == pytest.approx(full.columns / scale, rel=0.3, abs=8)


@pytest.mark.parametrize("model", ["ConvNextLarge", "RoBERTaXLM"])
def test_both_halves_of_the_paper_s_models_have_equal_length(model: str) -> None:
    for rank, scale in itertools.product((1, 2, 4, 8, 16), (1, 45.5, 88, 100)):
        made, full = ballast(model, compression_of(f"powersgd:{rank}"), scale), factors_of(model, rank)
        assert made is not None
        assert made.parameters == pytest.approx(models()[model].parameters / scale, rel=2e-3)
        own = sent([*model_shapes()["digits"], *((sides, 1) for sides in made.matrices)], rank)
        assert (own.rows, own.columns) == pytest.approx((full.rows / scale, full.columns / scale), rel=0.02)


@given(st.sampled_from(MODELS), RANKS)
def test_above_the_largest_scale_there_is_no_ballast(model: str, rank: int) -> None:
    compression = compression_of(f"powersgd:{rank}")
    most = largest_scale(model, compression)
    assert ballast(model, compression, most + 1) is None
    assert ballast(model, compression_of("float16"), 1000) is not None


def test_plan_of_the_paper_s_largest_run() -> None:
    plain, low = (
        resolve_emulation(load("geo-c8-nlp", [f"swarm.compression={c}"]), cores=2)
        for c in ("float16", "powersgd:4")
    )
    assert plain.matrices == ()
    assert (low.bytes_scale, len(low.matrices)) == (plain.bytes_scale, 2)
    assert low.parameters == pytest.approx(plain.parameters, rel=1e-3)
    assert low.part_size_bytes * low.parts * 8 == pytest.approx(6_727_108 / low.bytes_scale, rel=0.01)
    assert low.comm_s < 6 < plain.comm_s  # matchmaking is what remains
    assert low.host_busy is not None
    assert plain.host_busy is not None
    assert low.host_busy < plain.host_busy
    assert any("0.6 % of RoBERTaXLM's 560142482 values are sent" in reason for reason in low.reasons)


def test_rented_vms_send_the_model_s_own_factors() -> None:
    spec = load("geo-c8-nlp", ["swarm.compression=powersgd:4"])
    plan = full_size(spec)
    assert (plan.parameters, plan.matrices, plan.parts) == (560_142_482, (), 2)


def test_small_model_is_scaled_less() -> None:
    spec = load("a10-8-rn18", ["swarm.compression=powersgd:4"])
    plan = resolve_emulation(spec, cores=2)
    assert 1 < plan.bytes_scale == largest_scale("ResNet18", compression_of("powersgd:4")) < 20


def test_egress_estimate_uses_the_values_sent() -> None:
    book = load_book("study-2023-04")
    usd = {}
    for compression in ("float16", "powersgd:4"):
        found = epoch_egress_usd(load("geo-c8-nlp", [f"swarm.compression={compression}"]), book)
        assert found is not None
        usd[compression] = found
    assert usd["powersgd:4"] < usd["float16"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("geo-c8", ["swarm.compression=powersgd:4", "swarm.averaging=hierarchical"], "or averaging: flat"),
        ("geo-c8", ["swarm.compression=powersgd:0"], "a rank from 1 to 64"),
        ("geo-c8", ["swarm.compression=powersgd:65"], "a rank from 1 to 64"),
        ("geo-c8", ["swarm.compression=powersgd"], "one of none, float16, uniform8bit, blockwise8bit, or powersgd:<rank>"),
        ("geo-c8", ["swarm.compression=powersgd:4", "emulation={bytes_scale: 500}"], "the maximum is 105"),
        ("local-2", ["model=digits", "swarm.compression=powersgd:16", "emulation=auto"], "too small for this rank"),
        ("a10-8-rn18", ["swarm.compression=powersgd:4", "emulation={windows: kernel}"], "bytes_scale 45"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_used(name: str, changes: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        load(name, changes)


def test_other_compressions_send_every_value() -> None:
    for name, model in models().items():
        assert compression_of("uniform8bit").sent_values(name, model.parameters) == model.parameters
