"""What a VM reports is data from a machine that may be broken or hostile: readers bound it and never raise."""

import gzip
import io
import json
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.sky.records import VmRecord
from cloud.sky.state import after_peek, parse_peek
from cloud.sky.vm.ssh import bounded_output, unpack
from cloud.vm_report import job_of, parse_notice, printable, read_status, status_of

NOW_S = 1_000_000.0
MADDR = "/ip4/10.0.0.1/tcp/31337/p2p/12D3KooWGRUuQZfcDrL1q9qLQCpkW6hQ4gCvQ5FBCZ1gY3iR8dNm"
RECORD = VmRecord("r-a-0", "r-a-0", "aws/us-east-1/us-east-1a", "T4:1", True, NOW_S - 100.0, launched=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=5), of, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "phase",
        "maddr",
        "error",
        "hopeless",
        "notice_at_s",
        "at_s",
        "join",
        "exit_code",
        "epoch",
        "bad_samples",
    ]
)


@given(st.binary(max_size=300) | st.dictionaries(FIELDS, VALUES).map(lambda d: json.dumps(d).encode()))
def test_whatever_a_vm_sends_its_report_is_bounded_json_in_utf8(content):
    for read in (status_of, job_of):
        json.dumps(read(content), ensure_ascii=False, allow_nan=False).encode()


@given(st.dictionaries(FIELDS, VALUES), st.dictionaries(FIELDS, VALUES))
def test_no_vm_report_raises_in_record_updates(job, status):
    after = after_peek(RECORD, parse_peek(f"{json.dumps(job)}\n{json.dumps(status)}"), NOW_S)
    assert after.notice_at_s is None or after.notice_at_s <= NOW_S + 900.0
    assert after.ready_at_s is None or RECORD.requested_at_s <= after.ready_at_s <= NOW_S


@pytest.mark.parametrize(
    "said",
    [
        {"maddr": "alone"}, {"maddr": "/ip4/1.2.3.4/tcp/1/p2p/a b"}, {"hopeless": "no"}, {"hopeless": 1}, {"phase": 3},
        {"notice_at_s": "soon"}, {"notice_at_s": True}, {"epoch": -1}, {"join": []}, {"error": ["x"]},
        {"bad_samples": 3},
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_left_out(said):
    assert status_of(json.dumps({**said, "parameters_sha": "x"})) == {"parameters_sha": "x"}


def test_what_a_peer_writes_is_kept(tmp_path):
    document = {
        "phase": "failed", "maddr": MADDR, "epoch": 3,
        "error": "s3://digits/a.tar: the tar ends at byte 7000", "hopeless": True, "notice_at_s": NOW_S,
        "warnings": ["w"], "join": None, "bad_samples": {"training": {"count": 3, "first": "a"}},
    }  # fmt: skip
    (tmp_path / "status.json").write_text(json.dumps(document))
    assert read_status(tmp_path / "status.json") == document
    assert read_status(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    "content", ["[" * 200_000, '{"a":' * 5000, "9" * 6000, '{"phase": "x"}' + " " * 300_000, "{}}", "1"]
)
def test_nesting_digits_and_size_are_bounded(content):
    assert status_of(content) == {}


def test_implausibly_distant_notice_is_ignored():
    assert parse_notice(NOW_S + 120.0, NOW_S) == NOW_S + 120.0
    for said in (NOW_S + 30 * 86_400, float("inf"), float("nan"), 1e18, -1e300, None, "x", True):
        assert parse_notice(said, NOW_S) is None


def test_text_reaches_no_terminal_as_an_instruction():
    assert (
        printable("\x1b[31mred\x1b[0m \x1b]0;title\x07a\nb\x9b2Jc\x00\ud800\u202e")
        == "red a bc\ufffd\ufffd\ufffd"
    )
    assert printable("x" * 5000) == "x" * 2000


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_tars_own_archive_is_unpacked(tmp_path):
    (tmp_path / "steps.csv").write_bytes(b"x" * 700)
    (tmp_path / "peer.log").write_bytes(b"")
    command = ["tar", "-czf", "-", "-C", str(tmp_path), "steps.csv", "peer.log"]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert unpack(archive, ("steps.csv", "peer.log"), tmp_path / "to") == ["steps.csv", "peer.log"]
    assert (tmp_path / "to" / "steps.csv").read_bytes() == b"x" * 700
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["peer.log", "steps.csv"]


def test_unpacked_size_is_limited(tmp_path):
    archive = packed(peer_log=b"a", steps_csv=b"\0" * 3_000_000)
    assert len(archive) < 10_000
    assert unpack(archive, ("steps.csv", "peer.log"), tmp_path, most_bytes=1_000_000) == ["peer.log"]
    assert [p.name for p in tmp_path.iterdir()] == ["peer.log"]


def test_only_requested_files_are_unpacked(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind in (
            ("../x", tarfile.REGTYPE),
            ("/tmp/x", tarfile.REGTYPE),
            ("steps.csv", tarfile.SYMTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    assert unpack(out.getvalue(), ("steps.csv",), tmp_path / "to") == []
    assert list((tmp_path / "to").iterdir()) == []
    assert not (tmp_path / "x").exists()


@given(st.binary(max_size=2000), st.integers(0, 400), st.booleans())
def test_no_archive_raises(tmp_path_factory, noise, at, within):
    good = packed(steps_csv=b"1,2\n" * 50)
    bad = gzip.compress(gzip.decompress(good)[:at] + noise) if within else good[:at] + noise
    unpack(bad, ("steps.csv",), tmp_path_factory.mktemp("unpacked"))


def test_what_a_command_prints_is_bounded():
    script = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert bounded_output(process, 60.0, 1_000_000) is None
        finally:
            process.kill()
    with subprocess.Popen([sys.executable, "-c", "print('x')"], stdout=subprocess.PIPE) as process:
        assert bounded_output(process, 60.0, 1_000_000) == b"x\n"
