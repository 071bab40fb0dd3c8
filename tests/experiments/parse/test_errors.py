"""What is wrong with a file: all of it at once, each with its line, what was found and what is allowed."""

from pathlib import Path

import pytest

from experiments.parse import SpecError, load

GOOD = """\
name: mine
model: ConvNextLarge
data:
  shards: s3://digits/train-{000000..000031}.tar
swarm:
  target_batch_size: 32768
peers:
  - name: us
    count: 2
    resources:
      infra: gcp/us-central1/us-central1-a
  - name: eu
    resources:
      infra: gcp/europe-west1/europe-west1-b
"""


@pytest.fixture
def problems(tmp_path):
    """The problems of a text: a list of (line, column, path, message)."""

    def check(text: str, *overrides: str) -> list[tuple[int | None, int | None, str, str]]:
        file = tmp_path / "x.yaml"
        file.write_text(text)
        try:
            load(str(file), overrides)
        except SpecError as error:
            return [(p.line, p.column, p.path, p.message) for p in error.problems]
        return []

    return check


def _one(found, path):
    [(line, column, _, message)] = [p for p in found if p[2] == path]
    return line, column, message


def test_five_mistakes_are_five_problems_in_the_files_order(problems):
    text = (
        GOOD.replace("model: ConvNextLarge", "model: ConvNextLarg")
        .replace("  shards:", "  cache_gbs: 3\n  shards:")
        .replace("32768", "1000")
        .replace("count: 2", "count: 0")
        .replace("us-central1/us-central1-a", "us-centrl1/us-central1-a")
    )
    found = problems(text)
    assert [(line, path) for line, _, path, _ in found] == [
        (2, "model"),
        (4, "data.cache_gbs"),
        (7, "swarm.target_batch_size"),
        (10, "peers[0].count"),
        (12, "peers[0].resources.infra"),
    ]
    said = [message for *_, message in found]
    assert said[0].startswith("unknown model 'ConvNextLarg' (known: ConvNextLarge,")
    assert said[0].endswith("did you mean 'ConvNextLarge'?")
    assert said[1].startswith("unknown key 'cache_gbs'; did you mean 'cache_gb'?")
    assert said[2] == "found 1000; must be a multiple of swarm.batch_size (32), such as 992 or 1024"
    assert said[3] == "found 0; must be at least 1"
    assert said[4] == "'us-centrl1' is not a region of gcp; did you mean 'us-central1'?"


def test_the_text_of_an_error_is_one_line_a_problem(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(GOOD.replace("count: 2", "count: 1000000000") + "budget_usd: -1\n")
    with pytest.raises(SpecError) as caught:
        load(str(file))
    assert str(caught.value).splitlines() == [
        f"{file}:9:12: peers[0].count: found 1000000000; must be at most 64",
        f"{file}:15:13: budget_usd: found -1; must be dollars above 0 and at most 1000000, such as 2.50",
    ]


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "said"),
    [
        ("name: mine", "name: 7", "name", 1, "found 7; must be text"),
        ("name: mine", "name: My run", "name", 1, "'My run' is not an experiment's name"),
        ("name: mine\n", "", "name", 1, "is missing; add the key 'name'"),
        ("name: mine", "name: mine\nseed: 1.5", "seed", 2, "found 1.5; must be a whole number"),
        ("name: mine", "name: mine\nseed: true", "seed", 2, "found true; must be a whole number"),
        ("name: mine", "name: mine\nprices: study-2023-05", "prices", 2, "did you mean 'study-2023-04'?"),
        ("count: 2", "count: '2'", "peers[0].count", 9, "found '2'; must be a whole number"),
        ("{000000..000031}", "{000031..000000}", "data.shards", 4, "range is reversed"),
        ("s3://digits/train-{000000..000031}.tar", "''", "data.shards", 4, "is not the URL of a shard"),
        (
            "us-central1-a",
            "us-central1-z",
            "peers[0].resources.infra",
            11,
            "is not a zone of gcp/us-central1",
        ),
        (
            "gcp/us-central1/us-central1-a",
            "b2/us-west-1",
            "peers[0].resources.infra",
            11,
            "VMs cannot be rented",
        ),
        ("name: eu", "name: us", "peers[1].name", 12, "'us' is already the name of peers[0]"),
        ("name: eu", "name: Eu_1", "peers[1].name", 12, "is not a group's name"),
        ("32768", "32", "swarm.target_batch_size", 6, "at least peers x batch_size = 3 x 32 = 96"),
        ("32768", "99999999", "swarm.target_batch_size", 6, "must be at most 16777216"),
        ("32768", "32768\n  compression: fp16", "swarm.compression", 7, "one of none, float16"),
        ("32768", "32768\n  plain: true", "swarm.plain", 7, "does not average, but there are 3 peers"),
        ("32768", "32768\n  averaging_timeout_s: 5", "swarm.averaging_timeout_s", 7, "must be above"),
        (
            "32768",
            "32768\n  optimizer: {name: adam, momentum: 0.9}",
            "swarm.optimizer.momentum",
            7,
            "adam has no",
        ),
        ("  - name: eu", "  - name: eu\n    any_of: [{infra: aws/us-east-1}]", "peers[1]", 12, "found both"),
        ("name: mine", "name: mine\nbudget_usd: .nan", "budget_usd", 2, "must be dollars above 0"),
        ("name: mine", "name: mine\nsecrets: {TOKEN: hunter2}", "secrets.TOKEN", 2, "must be null"),
        ("name: mine", "name: mine\nenvs: {A_TOKEN: x}", "envs.A_TOKEN", 2, "write it under secrets"),
        ("name: mine", "name: mine\nenvs: {'A B': x}", "envs.A B", 2, "not an environment variable's name"),
    ],
)
def test_one_mistake(problems, old, new, path, line, said):
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    assert [p[2] for p in found] == [path]
    assert found[0][0] == line
    assert said in found[0][3]


@pytest.mark.parametrize(
    ("emulation", "path", "said"),
    [
        ("{network: study-2023-4}", "emulation.network", "did you mean 'study-2023-04'?"),
        ("{samples_scale: x}", "emulation.samples_scale", "found 'x'; must be 'auto' or a number from 1"),
        ("{bytes_scale: 0.5}", "emulation.bytes_scale", "must be 'auto' or a number from 1"),
        ("{bytes_scale: 99999}", "emulation.bytes_scale", "the network that is actually trained"),
        ("{parts: 1.5}", "emulation.parts", "a whole number from 1"),
        ("{capacity: {gcp/us-central7: 1}}", "emulation.capacity.gcp/us-central7", "not a region of gcp"),
        ("{preempt: {slot: us-2, at_s: 3}}", "emulation.preempt.slot", "did you mean 'us-1'?"),
        ("{preempt: {slot: us-1}}", "emulation.preempt", "neither 'rate_per_h' nor 'at_s'"),
        ("{preempt: {rate: 3}}", "emulation.preempt.rate", "did you mean 'rate_per_h'?"),
        ("automatic", "emulation", "must be a mapping"),
    ],
)
def test_emulation(problems, emulation, path, said):
    found = [p for p in problems(GOOD + f"emulation: {emulation}\n") if p[2] == path]
    assert [p[0] for p in found] == [15]
    assert said in found[0][3]


def test_pair_without_a_step_time_is_allowed_on_rented_vms(problems):
    text = GOOD.replace("      infra: gcp/europe", "      accelerators: A100\n      infra: gcp/europe")
    line, _, message = _one(problems(text), "peers[1].resources.accelerators")
    assert line == 14
    assert (
        "no step time is known for ConvNextLarge on A100:1 (known for it: A10:1, RTX8000:1, T4:1, V100:8)"
        in message
    )
    assert problems(text + "emulation: null\n") == []


def test_unmeasured_pair_of_places_is_rejected(problems):
    text = GOOD.replace("gcp/europe-west1/europe-west1-b", "gcp/us-west1/us-west1-a")
    _, _, message = _one(problems(text), "peers[1].resources.infra")
    assert "has no figures from" in message
    assert "set 'emulation: null'" in message, "on rented VMs no network is emulated"


def test_wrong_batch_size_neither_hides_nor_adds_errors(problems):
    text = GOOD.replace("target_batch_size: 32768", "target_batch_size: 1000\n  batch_size: x")
    assert [p[2] for p in problems(text)] == ["swarm.batch_size"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("- a\n- b\n", 1, "an experiment is a mapping"),
        ("name: [1, 2\nmodel: x\n", 2, "not YAML: while parsing a flow sequence"),
        ("name: a\n\tmodel: b\n", 2, "not YAML:"),
        ("name: a\n---\nname: b\n", 2, "not YAML: expected a single document"),
        ("name: \x07\n", None, "not YAML:"),
        ("name: &a [*a]\n", None, "nested deeper than 30 levels (or an alias contains itself)"),
        ("a: " + "[" * 3000, None, "nested deeper than 30 levels"),
    ],
)
def test_files_that_are_not_experiments(problems, text, line, said):
    [(found_line, _, _, message)] = problems(text)
    assert found_line == line
    assert said in message


def test_yaml_mistakes_come_together_with_the_others(problems):
    found = problems(GOOD + "name: again\nseed: !!python/object:os.system {}\nbudget_usd: 0\n<<: {a: 1}\n")
    by_path = {path: (line, message) for line, _, path, message in found}
    assert by_path["name"] == (15, "duplicate key, first on line 1; remove one")
    assert by_path["budget_usd"][0] == 17
    assert [message for *_, message in found if "merge keys" in message]


def test_an_error_stays_one_plain_line(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(GOOD + '"a\\nb\\e[31m": 1\n')
    with pytest.raises(SpecError) as caught:
        load(str(file))
    assert str(caught.value).startswith(f"{file}:15:1: a\\nb\\x1b[31m: unknown key 'a\\nb\\x1b[31m' (allowed")


def test_alias_bombs_are_rejected(problems):
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    [(_, _, _, message)] = problems(bomb)
    assert message == "unfolds to more than 20000 values (YAML aliases count each time)"


def test_few_aliases_are_allowed(problems):
    text = GOOD.replace("resources:\n      infra: gcp/us", "resources: &r\n      infra: gcp/us")
    assert (
        problems(text.replace("resources:\n      infra: gcp/europe-west1/europe-west1-b", "resources: *r"))
        == []
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text (byte 0)"),
        (b"name: a\0b\n", "is binary"),
        (b"#" * 1_000_001, "is larger than 1000 kB"),
    ],
)
def test_unreadable_files(tmp_path, content, said):
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=str(file)) as caught:
        load(str(file))
    assert said in str(caught.value)


def test_a_folder_an_unknown_name_and_an_impossible_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for name, said in [
        ("runs", "runs: is a folder"),
        ("geo-b3.yaml", "did you mean 'geo-"),
        ("nothing-like-it", "`orch experiments` lists the library"),
        ("no/such/file.yaml", "no such file"),
        ("x" * 5000, "cannot be looked up: file name too long"),
        ("a\0b", "a\\x00b: no such file"),
    ]:
        with pytest.raises(SpecError) as caught:
            load(name)
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_impossible_limits_are_reported(problems):
    text = GOOD + "min_peers: 4\nlease_s: 5\nmax_wall_time_s: 0\nlimits: {vms_per_min: 0, vm_per_h: 3}\n"
    found = {path: (line, message) for line, _, path, message in problems(text)}
    assert found["min_peers"] == (15, "found 4; must be at most 3, the peers of all groups")
    assert found["lease_s"][1] == "found 5; must be at least 30"
    assert {"max_wall_time_s", "limits.vms_per_min", "limits.vm_per_h"} < set(found)
    assert problems(GOOD + "min_peers: 3\nmax_usd_per_h: 2.50\nlimits: {replacements_per_h: 0}\n") == []
