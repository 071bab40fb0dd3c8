"""Loading: names, overrides, the library, documents that go round."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import experiments.parse
from experiments.catalog import published, published_runs, step_time
from experiments.parse import SpecError, find, from_document, json_schema, library, load, slots, to_document

LIBRARY = Path(experiments.parse.__file__).parent.parent / "library"
ENTRIES = {entry.name: entry for entry in library()}
NAMES = list(ENTRIES)
OWN = {
    "local-2",
    "digits-alone",
    "digits-c8",
    "glyphs-2",
    "stdlib-lm-1",
    "stdlib-lm-2",
    "stdlib-lm-4",
}  # not of the study


A_TO_C = {
    "a1": (1,), "a2": (2,), "a3": (3,), "a4": (4,), "a6": (6,), "a8": (8,),
    "b2": (1, 1), "b4": (2, 2), "b6": (4, 2), "b8": (4, 4),
    "c3": (1, 1, 1), "c4": (1, 1, 1, 1), "c6": (2, 2, 2), "c8": (2, 2, 2, 2),
}  # fmt: skip
REGIONS = ("gcp/us-central1", "gcp/europe-west1", "gcp/asia-east1", "gcp/australia-southeast1")


def test_library_has_the_paper_s_28_runs_of_a_b_and_c():
    names = {name for name in NAMES if name[:5] in ("geo-a", "geo-b", "geo-c")}
    assert names == {f"geo-{run}{suffix}" for run in A_TO_C for suffix in ("", "-nlp")}


@pytest.mark.parametrize("run", A_TO_C)
def test_peers_are_at_the_paper_s_locations(run):
    for suffix, model in (("", "ConvNextLarge"), ("-nlp", "RoBERTaXLM")):
        spec, figures = load(f"geo-{run}{suffix}"), published(f"geo-{run}{suffix}")
        places = [(group.alternatives[0].infra, group.count) for group in spec.peers]
        assert spec.model == model
        assert (spec.measure.warmup_epochs, spec.measure.epochs) == (1, 2)
        assert figures is not None
        assert tuple(("/".join(place.split("/")[:2]), count) for place, count in places) == (
            figures.vms_by_location
        )
        assert figures.vms_by_location == tuple(zip(REGIONS, A_TO_C[run], strict=False))


def test_published_figures_are_wall_clock_or_unknown():
    runs = [row for row in published_runs().values() if row.experiment[:5] in ("geo-a", "geo-b", "geo-c")]
    assert len(runs) == 28
    for row in runs:
        alone = row.vms == 1
        assert (row.comm_s is None, row.epochs is None, row.sps_phase_timed is not None) == (alone,) * 3
        assert row.sps is not None
        if row.epoch_sps:
            assert row.epochs == len(row.epoch_sps)
            assert sum(row.epoch_sps) / len(row.epoch_sps) == pytest.approx(row.sps, abs=0.06)
        # Two or more peers a region is where the study's own two epochs differ: both must be known.
        assert bool(row.epoch_sps) == (row.experiment[4] in "bc" and row.experiment.endswith("-nlp"))
    by_run = {row.run: (row.sps, row.sps_phase_timed) for row in runs if row.vms == 1}
    assert by_run == {"A-1 CV": (36.8, 80.8), "A-1 NLP": (139.2, 208.8)}


@pytest.mark.parametrize("name", NAMES)
def test_library_files_match_their_names(name):
    spec = load(name)
    assert spec.name == name
    path = ENTRIES[name].path
    assert path == find(name)
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    assert from_document(json.loads(json.dumps(to_document(spec)))) == spec
    if name not in OWN:
        figures = published(name)
        assert figures is not None
        assert (figures.model, figures.vms) == (spec.model, spec.peer_count)
        assert figures.vms_by_location == tuple(
            ("/".join(group.alternatives[0].infra.split("/")[:2]), group.count) for group in spec.peers
        )
        assert (spec.swarm.target_batch_size, spec.swarm.batch_size) == (32768, 32)
        for place in (place for slot in slots(spec) for place in slot.places):
            assert place.use_spot == (place.accelerators == "T4:1")
            assert step_time(spec.model, place.accelerators) is not None


def test_other_experiments_of_the_paper_are_families():
    hybrid = [f"geo-{f}-{place}-{n}" for f in "ef" for place in "abc" for n in (1, 2, 4, 8)]
    clouds = [f"geo-d{n}" for n in (1, 2, 3)]
    models = ("rn18", "rn50", "rn152", "wrn101", "conv", "rbase", "rlarge", "rxlm")
    a10 = [f"a10-{n}-{model}" for n in (1, 2, 3, 4, 8) for model in models]
    expected = {f"{name}{suffix}" for name in (*clouds, *hybrid) for suffix in ("", "-nlp")} | {*a10}
    assert {name for name in NAMES if name[:5] not in ("geo-a", "geo-b", "geo-c")} == expected | OWN
    assert {name for name in NAMES if load(name).swarm.plain} == {
        "geo-a1", "geo-a1-nlp", "digits-alone", "stdlib-lm-1", *(f"a10-1-{model}" for model in models)
    }  # fmt: skip


def test_d_1_is_a_4():
    for suffix in ("", "-nlp"):
        d1, a4 = published(f"geo-d1{suffix}"), published(f"geo-a4{suffix}")
        assert d1 is not None
        assert a4 is not None
        assert (d1.same_as, a4.same_as, d1.run[:3]) == (a4.experiment, None, "D-1")
        assert (d1.sps, d1.comm_s, d1.epochs) == (a4.sps, a4.comm_s, a4.epochs)
        spec, same = load(f"geo-d1{suffix}"), load(f"geo-a4{suffix}")
        assert (spec.peers[0].resources, spec.peers[0].count) == (
            same.peers[0].resources,
            same.peers[0].count,
        )


def test_every_published_row_is_an_experiment_with_a_source():
    assert set(published_runs()) == set(NAMES) - OWN
    assert all(row.source for row in published_runs().values())


def test_the_shipped_schema_is_the_models():
    assert json.loads((LIBRARY / "schema.json").read_text()) == json_schema()


def test_a_file_in_the_folder_wins_over_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("geo-b2") == find("geo-b2.yaml") == LIBRARY / "geo-b2.yaml"
    Path("geo-b2.yaml").write_text((LIBRARY / "geo-b2.yaml").read_text().replace("seed: 0", "seed: 7"))
    assert load("geo-b2").seed == load("geo-b2.yaml").seed == 7


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("swarm.target_batch_size=8192", lambda s: s.swarm.target_batch_size, 8192),
        ("peers[1].count=2", lambda s: s.peers[1].count, 2),
        ("peers.eu.count=3", lambda s: s.peers[1].count, 3),
        ("peers.eu.resources.use_spot=false", lambda s: s.peers[1].resources.use_spot, False),
        ("budget_usd=2.10", lambda s: s.budget_usd, Decimal("2.1")),
        ("emulation.samples_scale=4", lambda s: s.emulation.samples_scale, 4.0),
        ("emulation.preempt.at_s=4", lambda s: s.emulation.preempt.at_s, 4.0),
        ("emulation=null", lambda s: s.emulation, None),
        ("envs.A=b=c", lambda s: s.envs, {"A": "b=c"}),
    ],
)
def test_overrides(override, read, value):
    assert read(load("geo-b2", [override])) == value


def test_later_override_wins_and_may_fix_the_file(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text((LIBRARY / "geo-b2.yaml").read_text().replace("count: 1", "count: 0"))
    assert load(str(file), ["peers[0].count=5", "peers[1].count=2", "peers[0].count=1"]).peer_count == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "--set seed: use key.key=value"),
        ("=3", "use key.key=value"),
        ("swarm.batch_sise=3", "swarm.batch_sise: unknown key 'batch_sise'; did you mean 'batch_size'?"),
        ("seed=x", "--set seed=x: seed: found 'x'; must be a whole number"),
        ("seed=[1", "--set seed=[1: seed: not YAML"),
        ("seed=", "found ''; must be a whole number"),
        ("peers.uss.count=2", "no entry is named 'uss' (there are: us, eu); did you mean 'us'?"),
        ("peers[4].count=2", "peers[4]: there are 2 entries, counted from 0"),
        ("seed.x=2", "seed.x: seed is a single value, not a list of entries"),
        ("swarm[0]=2", "swarm[0]: swarm is a mapping, not a list of entries"),
        ("swarm.target_batch_size=33", "--set swarm.target_batch_size=33: swarm.target_batch_size: found 33"),
    ],
)
def test_wrong_overrides(override, said):
    with pytest.raises(SpecError) as caught:
        load("geo-b2", [override])
    assert said in str(caught.value)
    assert ".yaml:" not in str(caught.value)


def test_slots_are_named_in_order_and_a_region_is_each_of_its_zones():
    spec = load("geo-c8", ["peers.eu.resources.infra=gcp/europe-west1", "peers.eu.replace.policy=next_place"])
    made = slots(spec)
    assert [slot.name for slot in made] == [
        "us-0",
        "us-1",
        "eu-0",
        "eu-1",
        "asia-0",
        "asia-1",
        "aus-0",
        "aus-1",
    ]
    assert [place.infra for place in made[0].places] == ["gcp/us-central1/us-central1-a"]
    assert [place.infra.rsplit("/", 1)[1] for place in made[2].places] == [f"europe-west1-{z}" for z in "bcd"]
    assert (made[2].group, made[2].replace.policy) == ("eu", "next_place")


def test_alternatives_keep_their_order():
    alternatives = "[{infra: gcp/us-central1/us-central1-f}, {infra: gcp/us-central1/us-central1-a}]"
    document = to_document(load("geo-b2"))
    document["peers"][0] |= {"resources": None, "any_of": [{"infra": "gcp/us-central1/us-central1-f"}]}
    assert slots(from_document(document))[0].places[0].infra.endswith("-f")
    with pytest.raises(SpecError, match="found both 'resources' and 'any_of'"):
        load("geo-b2", [f"peers.us.any_of={alternatives}"])


def test_a_resolved_document_holds_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    spec = load("geo-b2", ["secrets.HF_TOKEN=null"])
    assert "hunter2" not in json.dumps(to_document(spec))
    with pytest.raises(SpecError) as caught:
        load("geo-b2", ["secrets={HF_TOKEN: hunter2}"])
    assert "hunter2" not in caught.value.problems[0].message


_changes = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**32 - 1),
        "budget_usd": st.decimals("0.01", "999999", places=2).map(str),
        "description": st.text(max_size=50),
        "setup": st.text(max_size=50),
        "envs": st.dictionaries(
            st.from_regex("[B-E]{1,5}", fullmatch=True), st.text(max_size=20), max_size=3
        ),
        "measure": st.fixed_dictionaries(
            {"epochs": st.integers(1, 10_000), "warmup_epochs": st.integers(0, 100)}
        ),
        "emulation": st.one_of(
            st.none(),
            st.just("auto"),
            st.fixed_dictionaries(
                {
                    "bytes_scale": st.one_of(st.just("auto"), st.floats(1, 1000)),
                    "boot_s": st.floats(0, 3600),
                    "capacity": st.just({"gcp/us-central1": 2}),
                }
            ),
        ),
    },
)


@given(_changes)
def test_documents_round_trip(changes):
    spec = from_document({**to_document(load("geo-b2")), **changes})
    document = to_document(spec)
    assert from_document(document) == spec
    assert to_document(from_document(json.loads(json.dumps(document)))) == document


def test_experiments_are_frozen():
    spec = load("geo-b2")
    with pytest.raises(ValueError, match="frozen"):
        spec.seed = 3
