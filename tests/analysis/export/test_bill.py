"""A provider's bill compared with the run's estimate: the selection of rows, and errors of one sentence."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_run import write_run

from analysis.export.bill import BillComparison, compare_bill
from analysis.export.bill_file import BillError, BillRow, read_bill
from analysis.export.focus import focus_csv, focus_rows
from metrics.cost.ledger import CostLine, Ledger
from metrics.run import RunNumbers
from metrics.store.database import RunStore

RUN = "geo-c8-20231114-aaaa"
_DAY = {"ChargePeriodStart": "2023-11-14T00:00:00Z", "ChargePeriodEnd": "2023-11-15T00:00:00Z"}
_VM = {
    "ProviderName": "Google Cloud", "ServiceName": "Compute Engine", "ServiceCategory": "Compute", "ChargeCategory": "Usage",
    "SkuMeter": "Spot Preemptible N1 Predefined Instance Core running in Americas", "RegionId": "us-central1",
    "ResourceName": f"{RUN}-p0-0", "BillingCurrency": "USD", "BilledCost": "1.25", "Tags": "{}", **_DAY,
}  # fmt: skip
_TAGGED = {**_VM, "Tags": json.dumps({"orch-run": RUN})}


def _egress(words: str, usd: str = "1", **other: str) -> dict[str, str]:
    return {**_TAGGED, "SkuMeter": words, "BilledCost": usd, **other}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> RunNumbers:
    """A synthetic run of eight peers on four continents, as if it had been rented."""
    folder = tmp_path_factory.mktemp("home") / RUN
    write_run(folder)
    with RunStore.open_reader(folder / "run.db") as store:
        run = RunNumbers.of(store)
    return replace(run, meta=replace(run.meta, emulated=False))


def _text(rows: Sequence[Mapping[str, str]]) -> str:
    buffer = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _compared(numbers: RunNumbers, rows: Sequence[Mapping[str, str]], tmp_path: Path) -> BillComparison:
    file = tmp_path / "bill.csv"
    file.write_text(_text(rows))
    return compare_bill(numbers, read_bill(file), str(file))


def _services(found: BillComparison) -> dict[str, Any]:
    return {f"{row.provider} {row.service}": row for row in found.rows}


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet"])
def test_our_own_estimate_as_a_bill_differs_by_nothing(numbers: RunNumbers, form: str, tmp_path: Path):
    rows = focus_rows(numbers).rows
    file = tmp_path / f"bill.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), file)
    else:
        data = focus_csv(rows).encode()
        file.write_bytes(gzip.compress(data) if form == "csv.gz" else data)
    found = compare_bill(numbers, read_bill(file), str(file))
    assert found.selected_by == "tag"
    assert found.selected == found.read == len(rows)
    assert _services(found).keys() >= {
        "gcp vm",
        "gcp egress inter_continent",
        "gcp egress oceania",
        "b2 data",
    }
    assert all(row.difference_usd == 0 and not row.note for row in found.rows)
    assert found.total.estimate_usd == found.total.bill_usd == numbers.bill.sum()
    assert found.unmatched_estimate == found.unmatched_bill == found.warnings == ()


def test_the_difference_is_the_bill_less_the_estimate(numbers: RunNumbers, tmp_path: Path):
    line = CostLine("vm", "x", numbers.vms[0].vm, "", 3600.0, "s", Decimal("1.00"), "p")
    found = _compared(
        replace(numbers, bill=Ledger((line,))), [_TAGGED, {**_VM, "BilledCost": "99"}], tmp_path
    )
    (row,) = found.rows
    assert (row.estimate_usd, row.bill_usd, row.difference_usd) == (1, Decimal("1.25"), Decimal("0.25"))
    assert row.difference_pct == pytest.approx(25)
    assert (found.selected, found.read, row.charges) == (1, 2, 1)


def test_rows_are_selected_by_tag_then_name_then_time_and_region(numbers: RunNumbers, tmp_path: Path):
    elsewhere = {**_VM, "ResourceName": "web-1", "RegionId": "us-west1"}
    later = {**_VM, "ResourceName": "web-1", "ChargePeriodStart": "2023-11-15T00:00:00Z",
             "ChargePeriodEnd": "2023-11-16T00:00:00Z"}  # fmt: skip
    beside = {**_VM, "ResourceName": "web-1"}
    assert _compared(numbers, [_TAGGED, _VM, beside, later, elsewhere], tmp_path).selected_by == "tag"
    named = _compared(numbers, [_VM, beside, later, elsewhere], tmp_path)
    assert (named.selected_by, named.selected) == ("names", 1)
    assert named.warnings == ("No row has the tag orch-run; the rows that name the run's VMs are used.",)
    near = _compared(numbers, [beside, later, elsewhere], tmp_path)
    assert (near.selected_by, near.selected) == ("time and regions", 1)
    assert "may include usage of others" in near.warnings[0]
    with pytest.raises(BillError, match=f"none of its 2 rows belongs to run {RUN}"):
        _compared(numbers, [later, elsewhere], tmp_path)
    with pytest.raises(BillError, match="none of its 0 rows"):
        compare_bill(numbers, iter(()), "empty.csv")


@pytest.mark.parametrize(
    "tags",
    [
        f'{{"orch-run": "{RUN}"}}',
        f'{{"user:orch-run": "{RUN}", "a": true}}',
        f'[{{"key": "orch-run", "value": "{RUN}"}}]',
    ],
)
def test_tags_as_providers_write_them(numbers: RunNumbers, tags: str, tmp_path: Path):
    assert _compared(numbers, [{**_VM, "Tags": tags}], tmp_path).selected_by == "tag"


@pytest.mark.parametrize("tags", ["", "{", "[1]", '{"orch-run": "another"}', '{"not-orch-run": "x"}', "7"])
def test_tags_that_do_not_name_the_run(numbers: RunNumbers, tags: str, tmp_path: Path):
    assert _compared(numbers, [{**_VM, "Tags": tags}], tmp_path).selected_by == "names"


@pytest.mark.parametrize(
    "named",
    [
        {"ResourceName": f"{RUN}-p0-0"},
        {
            "ResourceName": "",
            "ResourceId": f"//compute.googleapis.com/projects/p/zones/z/instances/{RUN}-p0-0",
        },
        {"ResourceName": "", "ResourceId": "i-0abc", "Tags": json.dumps({"Name": f"{RUN}-p0-0"})},
    ],
)
def test_names_as_providers_write_them(numbers: RunNumbers, named: dict[str, str], tmp_path: Path):
    assert _compared(numbers, [{**_VM, "ResourceId": "", **named}], tmp_path).selected_by == "names"


def test_one_sided_items_are_marked(numbers: RunNumbers, tmp_path: Path):
    other = {**_TAGGED, "ResourceName": f"{RUN}-p9-0"}
    found = _compared(
        numbers, [_TAGGED, other, {**_TAGGED, "ChargeCategory": "Tax", "BilledCost": "0.20"}], tmp_path
    )
    rows = _services(found)
    assert (rows["gcp tax"].note, rows["gcp tax"].estimate_usd) == ("not in the estimate", None)
    assert rows["gcp egress oceania"].note == "not on this bill"
    assert rows["gcp egress oceania"].bill_usd is None
    assert rows["gcp vm"].bill_usd == Decimal("2.5")
    assert found.unmatched_bill == (f"{RUN}-p9-0",)
    assert found.unmatched_estimate == tuple(vm.vm for vm in numbers.vms[1:])
    assert found.total.bill_usd == Decimal("2.7")
    # The store's provider has a bill of its own: its estimate is shown, and in no total.
    assert rows["b2 data"].note == "not on this bill"
    ours = Ledger(tuple(line for line in numbers.bill.lines if line.kind != "data"))
    assert found.total.estimate_usd == ours.sum()


def test_egress_without_a_class_is_compared_as_one_sum(numbers: RunNumbers, tmp_path: Path):
    found = _compared(
        numbers, [_egress("Data Transfer", "3"), _egress("Network Inter Zone Egress", "2")], tmp_path
    )
    egress = [row for row in found.rows if row.service.startswith("egress")]
    assert [(row.service, row.bill_usd, row.estimate_usd) for row in egress] == [
        ("egress", 5, numbers.bill.sum("egress"))
    ]
    assert any("compared as one sum" in warning for warning in found.warnings)


def test_an_unknown_estimate_stays_unknown(numbers: RunNumbers, tmp_path: Path):
    lines = (*numbers.bill.lines, CostLine("vm", "x", numbers.vms[1].vm, "", 1.0, "s", None, "no price"))
    found = _compared(replace(numbers, bill=Ledger(lines)), [_TAGGED], tmp_path)
    row = _services(found)["gcp vm"]
    assert (row.estimate_usd, row.difference_usd, row.difference_pct, row.note) == (
        None,
        None,
        None,
        "estimate unknown",
    )
    assert found.total.estimate_usd is None


def test_egress_to_unknown_destination_has_no_class(numbers: RunNumbers, tmp_path: Path):
    lost = CostLine(
        "egress", "egress unknown", numbers.vms[1].vm, "203.0.113.7", 10, "bytes", None, "unknown place"
    )
    found = _compared(replace(numbers, bill=Ledger((lost,))), [_TAGGED], tmp_path)
    assert _services(found)["gcp egress"].note == "not on this bill"


def test_an_emulated_run_cannot_have_been_billed(numbers: RunNumbers, tmp_path: Path):
    emulated = replace(numbers, meta=replace(numbers.meta, emulated=True))
    assert any("was emulated" in warning for warning in _compared(emulated, [_TAGGED], tmp_path).warnings)


def test_columns_of_other_versions_and_exports(numbers: RunNumbers, tmp_path: Path):
    """1.3 has ServiceProviderName; some exports write snake case, a byte order mark, times of other forms."""
    row = {
        **_TAGGED,
        "ChargePeriodStart": "2023-11-14 00:00:00 UTC",
        "ServiceProviderName": "Amazon Web Services",
    }
    del row["ProviderName"]
    text = _text([row])
    for name in row:
        text = text.replace(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), 1)
    file = tmp_path / "bill.csv"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert {row.provider for row in compare_bill(numbers, read_bill(file), "x").rows if row.bill_usd} == {
        "aws"
    }


def test_parquet_with_its_own_types(numbers: RunNumbers, tmp_path: Path):
    row = {
        **_TAGGED, "BilledCost": Decimal("1.25"), "ChargePeriodStart": datetime(2023, 11, 14),
        "ChargePeriodEnd": datetime(2023, 11, 15, tzinfo=UTC), "Tags": [("orch-run", RUN)],
    }  # fmt: skip
    schema = pa.schema(
        [(name, pa.string()) for name in _TAGGED if name not in ("BilledCost", "Tags", *_DAY)]
        + [("BilledCost", pa.decimal128(20, 9)), ("ChargePeriodStart", pa.timestamp("us")),
           ("ChargePeriodEnd", pa.timestamp("ms", tz="UTC")), ("Tags", pa.map_(pa.string(), pa.string()))]
    )  # fmt: skip
    file = tmp_path / "bill.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema=schema), file)
    found = compare_bill(numbers, read_bill(file), str(file))
    assert (found.selected_by, found.total.bill_usd) == ("tag", Decimal("1.25"))
    untagged = {**row, "Tags": [], "ResourceName": "web-1"}
    pq.write_table(pa.Table.from_pylist([untagged], schema=schema), file)
    assert compare_bill(numbers, read_bill(file), str(file)).selected_by == "time and regions"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"BillingCurrency": "EUR"}, r"bill\.csv:2: BillingCurrency: 'EUR' is not USD"),
        ({"BilledCost": "a lot"}, r"bill\.csv:2: BilledCost: 'a lot' is not an amount"),
        ({"BilledCost": "NaN"}, r"bill\.csv:2: BilledCost: 'NaN' is not an amount"),
        ({"BilledCost": ""}, r"bill\.csv:2: BilledCost: '' is not an amount"),
        (
            {"Tags": "{}", "ResourceName": "web-1", "ChargePeriodEnd": "yesterday"},
            r"bill\.csv:2: ChargePeriodEnd: 'yesterday' is not a date and time",
        ),
    ],
)
def test_invalid_value_error_is_one_sentence(
    numbers: RunNumbers, change: dict[str, str], says: str, tmp_path: Path
):
    with pytest.raises(BillError, match=says):
        _compared(numbers, [{**_TAGGED, **change}], tmp_path)


def test_invalid_rows_of_others_are_ignored(numbers: RunNumbers, tmp_path: Path):
    others = {
        **_VM,
        "ResourceName": "web-1",
        "BillingCurrency": "EUR",
        "BilledCost": "?",
        "ChargePeriodEnd": "?",
    }
    assert _compared(numbers, [others, _TAGGED], tmp_path).selected == 1


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("b.csv", b"", r"b\.csv:1: no column BilledCost, BillingCurrency"),
        ("b.csv", b"a,b\n1,2\n", r"b\.csv:1: no column BilledCost"),
        (
            "b.csv",
            _text([_TAGGED]).replace("BilledCost", "Cost").encode(),
            r"b\.csv:1: no column BilledCost; give a FOCUS",
        ),
        ("b.csv", _text([_TAGGED, _TAGGED]).encode()[:-60], r"b\.csv:3: "),
        (
            "b.csv",
            _text([_TAGGED]).encode() + b"x,y\n",
            r"b\.csv:3: 2 cells, but 12 columns: the line is truncated or damaged",
        ),
        ("b.csv", _text([_TAGGED] * 9).encode() + b"\xff\xfe", r"b\.csv:11: not UTF-8 text"),
        (
            "b.csv.gz",
            gzip.compress(_text([_TAGGED] * 999).encode(), mtime=0)[:-30],
            r"b\.csv\.gz:\d+: the gzip file is truncated",
        ),
        ("b.csv.gz", b"\x1f\x8b\x08\x00junkjunkjunk", r"b\.csv\.gz:1: the gzip file is truncated or damaged"),
        ("b.parquet", b"PAR1 and then nothing", r"b\.parquet: cannot be read as Parquet"),
        ("b.parquet", b"", r"b\.parquet: cannot be read as Parquet"),
        ("b.csv", None, r"b\.csv: cannot be read \(No such file"),
        ("b.parquet", None, r"b\.parquet: cannot be read"),
    ],
)
def test_invalid_file_error_is_one_sentence(
    numbers: RunNumbers, name: str, data: bytes | None, says: str, tmp_path: Path
):
    file = tmp_path / name
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(BillError, match=says) as failed:
        compare_bill(numbers, read_bill(file), str(file))
    assert "\n" not in str(failed.value)


def test_folder_is_not_a_bill(numbers: RunNumbers, tmp_path: Path):
    with pytest.raises(BillError, match="cannot be read"):
        compare_bill(numbers, read_bill(tmp_path), str(tmp_path))


@settings(max_examples=50)
@given(data=st.data())
def test_every_dollar_of_the_bill_is_in_one_service(numbers: RunNumbers, data: st.DataObject):
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "BilledCost": st.decimals(-(10**6), 10**6, places=6).map(str),
                    "SkuMeter": st.sampled_from(
                        ["Core", "Network Inter Zone Egress", "Data Transfer", "PD Capacity"]
                    ),
                    "ServiceCategory": st.sampled_from(["Compute", "Networking", "Storage", "Other"]),
                    "ChargeCategory": st.sampled_from(["Usage", "Tax", "Credit"]),
                    "ProviderName": st.sampled_from(["Google Cloud", "AWS"]),
                    "ResourceName": st.sampled_from([f"{RUN}-p0-0", "web-1", ""]),
                }
            ),
            min_size=1,
            max_size=12,
        )
    )
    bill = [BillRow("", {k.casefold(): v for k, v in {**_TAGGED, **row}.items()}) for row in rows]
    found = compare_bill(numbers, bill, "x")
    billed = sum(Decimal(row["BilledCost"]) for row in rows)
    assert found.total.bill_usd == billed
    assert sum(row.bill_usd for row in found.rows if row.bill_usd) == billed
    assert sum(row.charges for row in found.rows if row.bill_usd) <= found.selected == len(rows)
