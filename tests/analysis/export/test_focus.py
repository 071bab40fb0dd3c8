"""A run's costs as FOCUS 1.2 rows: all rules of the specification hold, and the dollars are the ledger's."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from focus_rules import MANDATORY, findings
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_run import write_run

from analysis.export.focus import focus_csv, focus_metadata, focus_rows
from analysis.export.focus_file import export_focus
from analysis.export.tables import ExportError
from cloud.prices.book import exact, load
from metrics.cost.ledger import CostLine, Ledger
from metrics.run import RunNumbers
from metrics.store.database import RunStore

RUN = "geo-c8-20231114-aaaa"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> RunNumbers:
    """A synthetic run of eight peers on four continents, one of them preempted."""
    folder = tmp_path_factory.mktemp("home") / RUN
    write_run(folder)
    with RunStore.open_reader(folder / "run.db") as store:
        return RunNumbers.of(store)


def _with(numbers: RunNumbers, *lines: CostLine) -> RunNumbers:
    return replace(numbers, bill=Ledger(lines))


def _total(rows: list[dict[str, str]], column: str = "BilledCost") -> Decimal:
    with exact():
        return sum((Decimal(row[column]) for row in rows), Decimal(0))


def _read(numbers: RunNumbers) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(focus_csv(focus_rows(numbers).rows))))


def test_every_rule_of_the_spec_holds(numbers: RunNumbers):
    text = focus_csv(focus_rows(numbers).rows)
    assert findings(text) == []
    assert text.count("\n") > 60


def test_the_dollars_are_the_ledgers(numbers: RunNumbers):
    rows = _read(numbers)
    assert _total(rows) == numbers.bill.sum() != 0
    for kind in ("vm", "egress", "data"):
        assert _total([row for row in rows if row["x_Kind"] == kind]) == numbers.bill.sum(kind)
    for column in ("ListCost", "ContractedCost", "EffectiveCost"):
        assert _total(rows, column) == numbers.bill.sum()


def test_a_vm_is_one_row(numbers: RunNumbers):
    rows = [row for row in _read(numbers) if row["x_Kind"] == "vm"]
    assert [row["ResourceId"] for row in rows] == [vm.vm for vm in numbers.vms]
    first = rows[0]
    assert first["ProviderName"] == "Google Cloud"
    assert (first["RegionId"], first["AvailabilityZone"]) == ("us-central1", "us-central1-a")
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == (
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:16:40Z",
    )
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == (
        "2023-11-01T00:00:00Z",
        "2023-12-01T00:00:00Z",
    )
    assert (first["PricingCategory"], first["ListUnitPrice"], first["PricingUnit"]) == (
        "Dynamic",
        "0.18",
        "Hours",
    )
    assert (first["ConsumedQuantity"], first["ConsumedUnit"]) == ("830", "Seconds")  # at full scale
    assert json.loads(first["Tags"]) == {"orch-run": RUN, "orch-slot": "p-0"}
    assert json.loads(first["SkuPriceDetails"])["InstanceType"] == "n1-standard-8"


def test_estimates_are_marked(numbers: RunNumbers):
    for row in _read(numbers):
        assert row["x_Estimate"] == "true"
        assert row["x_Emulated"] == "true"
        assert "Estimate" in row["ChargeDescription"]
        assert "emulated" in row["ChargeDescription"]
        assert row["InvoiceId"] == ""
    real = replace(numbers, meta=replace(numbers.meta, emulated=False))
    assert {row["x_Emulated"] for row in _read(real)} == {"false"}
    assert not any("emulated" in row["ChargeDescription"] for row in _read(real))


def test_egress_is_one_row_a_link_and_tier(numbers: RunNumbers):
    book = load("study-2023-04")
    a, b = numbers.vms[0].vm, numbers.vms[1].vm
    tiers = [
        CostLine("egress", "egress inter_continent", a, b, 10**9, "bytes", Decimal(10**9) / 2**30 * Decimal("0.08"),
                 book.name, "", "2023-11"),
        CostLine("egress", "egress inter_continent", a, b, 10**15, "bytes", Decimal("70000.123456789"), book.name, "",
                 "2023-11"),
    ]  # fmt: skip
    rows = _read(_with(numbers, *tiers))
    assert findings(focus_csv(focus_rows(_with(numbers, *tiers)).rows)) == []
    assert rows[0]["ListUnitPrice"] == "0.08"
    assert rows[0]["PricingUnit"] == "GiB"
    assert Decimal(rows[0]["PricingQuantity"]) == Decimal(10**9) / 2**30
    assert rows[1]["BilledCost"] == "70000.123456789"
    assert rows[0]["x_LinkClass"] == "inter_continent"
    assert (rows[0]["x_Source"], rows[0]["x_Destination"]) == (a, b)


def test_storage_and_the_controllers_vm_have_rows(numbers: RunNumbers):
    controller = replace(numbers.vms[0], vm="controller-0", slot="controller", use_spot=False)
    lines = (
        CostLine(
            "controller",
            "controller-0: n1-standard-8 on demand",
            "controller-0",
            "",
            7200.0,
            "s",
            Decimal("0.36"),
            "p",
        ),
        CostLine(
            "storage", "data kept for 7200 s", "store", "", 5 * 10**9, "bytes", Decimal("0.00008219"), "p"
        ),
    )
    changed = replace(_with(numbers, *lines), vms=(*numbers.vms, controller))
    rows = _read(changed)
    assert findings(focus_csv(focus_rows(changed).rows)) == []
    assert [row["x_Kind"] for row in rows] == ["controller", "storage"]
    assert rows[0]["PricingCategory"] == "Standard"
    assert (rows[1]["ServiceCategory"], rows[1]["PricingUnit"]) == ("Storage", "GB-Months")
    assert _total(rows) == changed.bill.sum()


def test_line_spanning_months_is_divided(numbers: RunNumbers):
    start = datetime(2023, 12, 31, 23, 0, tzinfo=UTC).timestamp()
    vm = replace(numbers.vms[0], requested_s=start + 0.25, ended_s=start + 3 * 3600 + 0.5)
    line = CostLine("vm", "x", vm.vm, "", 10800.25, "s", Decimal("0.5400125"), "p")
    changed = replace(_with(numbers, line), vms=(vm,))
    rows = _read(changed)
    assert findings(focus_csv(focus_rows(changed).rows)) == []
    assert [row["BillingPeriodStart"] for row in rows] == ["2023-12-01T00:00:00Z", "2024-01-01T00:00:00Z"]
    assert rows[0]["ChargePeriodStart"] == "2023-12-31T23:00:00Z"
    assert rows[0]["ChargePeriodEnd"] == rows[1]["ChargePeriodStart"] == "2024-01-01T00:00:00Z"
    assert rows[1]["ChargePeriodEnd"] == "2024-01-01T02:00:01Z"
    assert _total(rows) == line.usd
    assert _total(rows, "ConsumedQuantity") == Decimal("10800.25")
    assert Decimal(rows[0]["BilledCost"]) < Decimal(rows[1]["BilledCost"])


def test_monthly_line_stays_in_its_month(numbers: RunNumbers):
    start = datetime(2023, 12, 31, 23, 0, tzinfo=UTC).timestamp()
    vm = replace(numbers.vms[0], requested_s=start, ended_s=start + 7200)
    lines = [
        CostLine(
            "egress", "egress internet", vm.vm, "monitor", 10**9, "bytes", Decimal("0.1"), "p", "", month
        )
        for month in ("2023-12", "2024-01")
    ]
    changed = replace(_with(numbers, *lines), vms=(vm,))
    rows = _read(changed)
    assert findings(focus_csv(focus_rows(changed).rows)) == []
    assert [row["BillingPeriodStart"][:7] for row in rows] == ["2023-12", "2024-01"]


def test_a_vm_that_still_runs_is_charged_until_the_last_record(numbers: RunNumbers):
    vms = tuple(replace(vm, ended_s=None) for vm in numbers.vms)
    going = replace(numbers, vms=vms, meta=replace(numbers.meta, ended_s=None, status="running"))
    assert findings(focus_csv(focus_rows(going).rows)) == []
    assert _read(going)[0]["ChargePeriodEnd"] == "2023-11-14T22:16:20Z"  # the last epoch's end


@pytest.mark.parametrize("at_s", [-1.0, 1e12, float("inf"), float("nan")])
def test_invalid_time_error_is_one_sentence(numbers: RunNumbers, at_s: float):
    vm = replace(numbers.vms[0], ended_s=at_s)
    egress = next(line for line in numbers.bill.lines if line.kind == "egress" and line.usd)
    for lines in (numbers.bill.lines, (egress,)):
        with pytest.raises(ExportError, match="are not valid unix seconds"):
            focus_rows(replace(_with(numbers, *lines), vms=(vm, *numbers.vms[1:])))


def test_unused_items_have_no_row(numbers: RunNumbers):
    nothing = CostLine(
        "egress", "egress same_zone", numbers.vms[0].vm, numbers.vms[4].vm, 0, "bytes", Decimal(0), "p"
    )
    free = replace(nothing, quantity=10**6)
    assert [row["ConsumedQuantity"] for row in _read(_with(numbers, nothing, free))] == ["1000000"]
    assert findings(focus_csv(focus_rows(_with(numbers, free)).rows)) == []


def test_unknown_cost_has_no_row_and_is_listed(numbers: RunNumbers, tmp_path: Path):
    unknown = CostLine("egress", "egress", numbers.vms[0].vm, "", None, "bytes", None, "it was not measured")
    made = focus_rows(_with(numbers, unknown, numbers.bill.lines[0]))
    assert len(made.rows) == 1
    assert made.left_out == (unknown,)
    write_run(tmp_path / RUN)
    with RunStore.open_writer(tmp_path / RUN / "run.db") as store:
        store.upsert_vm(replace(numbers.vms[2], usd_per_h=None, price_source="no such price"))
    with pytest.raises(
        ExportError, match=r"the cost of 1 of .* lines of the bill is unknown.*no such price.*--known-only"
    ):
        export_focus(tmp_path / RUN / "run.db", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    manifest = export_focus(tmp_path / RUN / "run.db", tmp_path / "out", known_only=True)
    assert len(manifest["left_out"]) == 1
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    assert findings((tmp_path / "out" / "focus.csv").read_text()) == []


def test_the_metadata_describes_the_columns(numbers: RunNumbers):
    schema = focus_metadata("orch 1")["Schema"]
    assert schema["FocusVersion"] == "1.2"
    header = next(csv.reader(io.StringIO(focus_csv(focus_rows(numbers).rows))))
    assert [column["ColumnName"] for column in schema["ColumnDefinition"]] == header
    assert header[:57] == sorted(header[:57])
    assert set(MANDATORY) <= set(header)


_AMOUNTS = st.decimals(0, 10**6, places=9)


@settings(max_examples=60)
@given(
    usd=_AMOUNTS,
    quantity=st.floats(1e-3, 1e9),
    sent=st.integers(1, 10**15),
    start=st.floats(1.6e9, 1.9e9),
    seconds=st.floats(0, 100 * 86400),
)
def test_any_line_keeps_its_dollars_and_the_rules(
    numbers: RunNumbers, usd: Decimal, quantity: float, sent: int, start: float, seconds: float
):
    vm = replace(numbers.vms[0], requested_s=start, ended_s=start + seconds)
    price = replace(vm, usd_per_h=None)  # the ledger's dollars, whatever the hour costs
    lines = (
        CostLine("vm", "x", vm.vm, "", quantity, "s", usd, "p"),
        CostLine("egress", "egress oceania", vm.vm, numbers.vms[3].vm, sent, "bytes", usd, "p"),
        CostLine("data", "reading data", "store", vm.vm, sent, "bytes", usd, "p"),
    )
    changed = replace(_with(numbers, *lines), vms=(price, *numbers.vms[1:]))
    text = focus_csv(focus_rows(changed).rows)
    assert findings(text) == []
    assert _total(list(csv.DictReader(io.StringIO(text)))) == usd * 3


@pytest.mark.parametrize(
    ("column", "value", "section"),
    [
        ("BilledCost", "", "BilledCost"),
        ("BilledCost", "1e-5", "Numeric Format"),
        ("BilledCost", "$1", "Numeric Format"),
        ("ListCost", "1,000", "Numeric Format"),
        ("EffectiveCost", "+1", "Numeric Format"),
        ("ListUnitPrice", "-1", "ListUnitPrice"),
        ("ListUnitPrice", "", "ListUnitPrice"),
        ("ListCost", "99", "ListCost"),
        ("ContractedCost", "99", "ContractedCost"),
        ("BillingCurrency", "US$", "Currency Format"),
        ("BillingCurrency", "usd", "Currency Format"),
        ("BillingAccountId", "", "BillingAccountId"),
        ("BillingAccountType", "", "BillingAccountType"),
        ("ChargeCategory", "Used", "ChargeCategory"),
        ("ChargeCategory", "Tax", "PricingQuantity"),
        ("ChargeClass", "Regular", "ChargeClass"),
        ("ChargeFrequency", "Hourly", "ChargeFrequency"),
        ("ChargePeriodStart", "2023-11-14 22:13:20", "Date/Time Format"),
        ("ChargePeriodStart", "2023-11-14T22:13:20+01:00", "Date/Time Format"),
        ("ChargePeriodStart", "2023-13-14T22:13:20Z", "Date/Time Format"),
        ("ChargePeriodStart", "2023-11-30T00:00:00Z", "Charge Period End"),
        ("ChargePeriodEnd", "2023-12-01T00:00:01Z", "Billing Period Start"),
        ("BillingPeriodEnd", "2023-10-01T00:00:00Z", "Billing Period End"),
        ("ConsumedQuantity", "0", "ConsumedQuantity"),
        ("ConsumedQuantity", "", "ConsumedQuantity"),
        ("ConsumedUnit", "", "ConsumedUnit"),
        ("PricingUnit", "gigabytes", "Unit Format"),
        ("PricingUnit", "GBs per hour", "Unit Format"),
        ("PricingCategory", "Spot", "PricingCategory"),
        ("PricingQuantity", "", "PricingQuantity"),
        ("RegionName", "", "RegionName"),
        ("ResourceId", "", "ResourceType"),
        ("ServiceCategory", "Computing", "ServiceCategory"),
        ("ServiceSubcategory", "Data Transfer", "ServiceSubcategory"),
        ("ServiceName", "", "ServiceName"),
        ("SkuId", "", "SkuId"),
        ("SkuPriceId", "", "SkuPriceId"),
        ("SkuPriceDetails", '{"GpuModel": "T4"}', "SKU Price Details"),
        ("SkuPriceDetails", '{"GpuCount": [1]}', "Key-Value Format"),
        ("Tags", "orch-run=1", "Key-Value Format"),
        ("Tags", '{"a": {"b": 1}}', "Key-Value Format"),
        ("SubAccountName", "x", "SubAccountName"),
        ("CommitmentDiscountStatus", "Used", "CommitmentDiscountStatus"),
        ("CapacityReservationStatus", "Used", "CapacityReservationStatus"),
        ("PublisherName", "n/a", "Null Handling"),
        ("ChargeDescription", " ", "Null Handling"),
        ("PricingCurrencyEffectiveCost", "", "PricingCurrencyEffectiveCost"),
    ],
)
def test_the_rules_find_a_broken_value(numbers: RunNumbers, column: str, value: str, section: str):
    rows = _read(numbers)[:1]
    rows[0][column] = value
    found = findings(_written(list(rows[0]), rows))
    assert section in {finding.section for finding in found}, found
    assert all(finding.row == 1 for finding in found)


@pytest.mark.parametrize("column", MANDATORY)
def test_rules_find_a_missing_column(numbers: RunNumbers, column: str):
    rows = _read(numbers)[:1]
    header = [name for name in rows[0] if name != column]
    assert (0, column, column, "MUST be present") in findings_safely(_written(header, rows))


def findings_safely(text: str) -> list[tuple[int, str, str, str]]:
    """Findings of the header alone."""
    return [tuple(finding) for finding in findings(text.split("\n", 1)[0] + "\n")]


def test_rules_require_marked_custom_columns(numbers: RunNumbers):
    rows = _read(numbers)[:2]
    header = list(rows[0])
    for row in rows:
        row["Kind"] = "vm"
    assert [(f.column, f.section) for f in findings(_written([*header, "Kind"], rows))] == [
        ("Kind", "Column Handling"), ("", "Column Handling")
    ]  # fmt: skip
    rows[1] |= {"SkuPriceId": rows[0]["SkuPriceId"], "SkuId": "another"}
    assert [f.section for f in findings(_written(header, rows))] == ["SKU Price ID"]
    rows = _read(numbers)[:2]
    rows[1] |= {"ServiceCategory": "Other", "ServiceSubcategory": "Other (Other)"}
    assert [f.section for f in findings(_written(header, rows))] == ["Service Category"]


def _written(header: list[str], rows: list[dict[str, str]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
