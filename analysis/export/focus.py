"""Converts a run's cost ledger to rows of the FOCUS 1.2 cost and usage dataset. Pure.

Every row is an estimate from records and list prices, and is marked as one. FOCUS allows no row without a cost, so a
line of the ledger with an unknown cost is never written as 0: it is left out and returned to the caller.
docs/export.md describes the columns.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

from analysis.export.focus_columns import CUSTOM_COLUMNS, FOCUS_COLUMNS, FOCUS_VERSION
from analysis.export.providers import names_of, service_of
from analysis.export.tables import ExportError
from cloud.places import PlaceError, find
from cloud.prices.book import UNIT_BYTES, Ladder, Price, exact, tiered_usd
from cloud.prices.classes import INTERNET, continent, egress_class
from metrics.cost.ledger import CostLine
from metrics.records import VmRecord
from metrics.run import RunNumbers
from metrics.traffic import PRIVATE, STORE

Row = dict[str, str | None]

_HOUR_S = Decimal(3600)
_DIGITS = Context(prec=40)  # for non-terminating quotients; dollars, products and sums are exact
_YEAR_10000_S = 253_402_300_800
_SAME = Decimal("1e-20")


@dataclass(frozen=True)
class FocusRows:
    """Rows by column name (None: FOCUS's null), and the ledger's lines that could not be converted."""

    rows: tuple[Row, ...]
    left_out: tuple[CostLine, ...]  # of unknown cost, with the reason in `price`


@dataclass(frozen=True)
class _Use:
    """The usage of one line of the ledger (place, time, quantity) in the units of FOCUS."""

    provider: str
    location: str
    link_class: str
    service: str  # a key of `analysis.export.providers.service_of`
    times: tuple[float, float]  # unix s
    consumed: Decimal
    consumed_unit: str
    priced: Decimal
    pricing_unit: str
    unit_usd: Decimal
    price_id: str  # distinguishes the prices of one SKU: places and tier
    vm: VmRecord | None


def focus_rows(numbers: RunNumbers) -> FocusRows:
    """Convert each line of `numbers.bill` with usage to one row per calendar month.

    Raises ExportError for times outside of the calendar.
    """
    rows: list[Row] = []
    left_out: list[CostLine] = []
    with exact():
        for line in numbers.bill.lines:
            if line.usd is None or line.quantity is None:
                left_out.append(line)
            elif line.quantity > 0 or line.usd > 0:  # unused items have no row
                rows += _rows(numbers, line, line.usd, line.quantity)
    return FocusRows(tuple(rows), tuple(left_out))


def focus_csv(rows: Sequence[Row]) -> str:
    """Format the rows as CSV. Null is an empty cell (FOCUS has no empty texts)."""
    buffer = io.StringIO()
    columns = [*FOCUS_COLUMNS, *CUSTOM_COLUMNS]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if row[name] is None else row[name] for name in columns] for row in rows)
    return buffer.getvalue()


def focus_metadata(generator: str) -> dict[str, Any]:
    """Return the metadata that FOCUS requires for a dataset: generator, version and columns."""
    columns = {**FOCUS_COLUMNS, **CUSTOM_COLUMNS}
    return {
        "DataGenerator": {"DataGenerator": generator},
        "Schema": {
            "SchemaId": f"orch-focus-{FOCUS_VERSION}-1",
            "FocusVersion": FOCUS_VERSION,
            "CreationDate": "2026-11-21T00:00:00Z",
            "ColumnDefinition": [
                {"ColumnName": name, "DataType": kind}
                | ({"StringEncoding": "UTF-8"} if kind in ("String", "JSON") else {})
                for name, kind in columns.items()
            ],
        },
    }


def _rows(numbers: RunNumbers, line: CostLine, usd: Decimal, quantity: float) -> Iterator[Row]:
    use = _use(numbers, line, usd, quantity)
    begin_s = math.floor(use.times[0])
    whole_s = max(1, math.ceil(use.times[1]) - begin_s)
    left = Decimal(1)
    months = list(_months(begin_s, begin_s + whole_s))
    for n, (start, end, month_start, month_end) in enumerate(months):
        # A row belongs to one month, so a line that spans months is divided by time, exactly.
        last = n == len(months) - 1
        share = left if last else round(Decimal(end - start) / whole_s, 12)
        left -= share
        yield _row(numbers, line, use, usd * share, share, (start, end), (month_start, month_end))


def _row(
    numbers: RunNumbers,
    line: CostLine,
    use: _Use,
    usd: Decimal,
    share: Decimal,
    charge: tuple[int, int],
    month: tuple[int, int],
) -> Row:
    names = names_of(use.provider)
    service = service_of(names, use.service)
    vm, run_id = use.vm, str(numbers.meta.run_id)
    region, zone = (*use.location.split("/")[1:], "", "")[:2]
    market = "spot" if vm and vm.use_spot else "on_demand"
    sku = f"{use.provider}/{line.kind}/" + (
        f"{vm.accelerator}/{vm.instance}/{market}" if vm else use.link_class or service.meter
    )
    cost, price = _plain(usd), _plain(use.unit_usd)
    emulated = bool(numbers.meta.emulated)
    filled: dict[str, str] = {
        "AvailabilityZone": zone,
        "BilledCost": cost,
        "BillingAccountId": "orch-estimate",
        "BillingAccountName": "orch estimate, not billed",
        "BillingAccountType": "Estimate",
        "BillingCurrency": "USD",
        "BillingPeriodEnd": _iso(month[1]),
        "BillingPeriodStart": _iso(month[0]),
        "ChargeCategory": "Usage",
        "ChargeDescription": _description(line, use, emulated),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _iso(charge[1]),
        "ChargePeriodStart": _iso(charge[0]),
        "ConsumedQuantity": _plain(use.consumed * share),
        "ConsumedUnit": use.consumed_unit,
        "ContractedCost": cost,
        "ContractedUnitPrice": price,
        "EffectiveCost": cost,
        "InvoiceIssuerName": names.provider,
        "ListCost": cost,
        "ListUnitPrice": price,
        "PricingCategory": "Dynamic" if vm and vm.use_spot else "Standard",
        "PricingCurrency": "USD",
        "PricingCurrencyContractedUnitPrice": price,
        "PricingCurrencyEffectiveCost": cost,
        "PricingCurrencyListUnitPrice": price,
        "PricingQuantity": _plain(use.priced * share),
        "PricingUnit": use.pricing_unit,
        "ProviderName": names.provider,
        "PublisherName": names.provider,
        "RegionId": region,
        "RegionName": _city(use.location) or region,
        "ResourceId": _resource(line, use),
        "ResourceName": _resource(line, use),
        "ResourceType": service.resource_type if _resource(line, use) else "",
        "ServiceCategory": service.category,
        "ServiceName": service.name,
        "ServiceSubcategory": service.subcategory,
        "SkuId": sku,
        "SkuMeter": service.meter,
        "SkuPriceDetails": _details(vm) if vm else "",
        "SkuPriceId": f"{sku}/{use.price_id}",
        "Tags": json.dumps({"orch-run": run_id} | ({"orch-slot": vm.slot} if vm else {})),
        "x_Destination": line.dst,
        "x_Emulated": "true" if emulated else "false",
        "x_Estimate": "true",
        "x_Kind": line.kind,
        "x_LinkClass": use.link_class,
        "x_PriceBook": numbers.terms.book.name if numbers.terms.book else "",
        "x_PriceSource": line.price,
        "x_RunId": run_id,
        "x_Source": line.src,
    }
    return {name: filled.get(name) or None for name in (*FOCUS_COLUMNS, *CUSTOM_COLUMNS)}


def _use(numbers: RunNumbers, line: CostLine, usd: Decimal, quantity: float) -> _Use:
    if line.kind in ("vm", "controller"):
        return _vm_use(numbers, line, usd, quantity)
    here, there = _ends(numbers, line)
    book, amount = numbers.terms.book, Decimal(round(quantity))
    ladder: Ladder | None = None
    if book is not None and line.kind == "storage":
        ladder = book.storage_ladder(here)
    elif book is not None:
        public = line_place(numbers, line)[1] == "same_zone_public"
        if line.kind == "data":
            ladder = book.store_ladder(here, there)
        elif line.dst == STORE and there != INTERNET:
            ladder = book.upload_ladder(here, there)
        else:
            ladder = book.ladder(here, there, public=public)
    unit = ladder.tiers[0].unit if ladder else "GB"
    priced = amount / UNIT_BYTES[unit]
    consumed, consumed_unit = amount, "B"
    if line.kind == "storage":
        whole = tiered_usd(ladder, round(quantity)) if ladder else Decimal(0)
        priced = _DIGITS.divide(priced * usd, whole) if whole else priced
        unit = consumed_unit = unit.replace("-month", "-Months")
        consumed = priced
    tier = _tier(line, ladder)
    exact_price = tier is not None and abs(tier.usd * priced - usd) <= abs(usd) * _SAME
    places = f"{continent(here) or 'any'}-{continent(there) or 'any'}"
    return _Use(
        provider=here.split("/")[0], location=here,
        link_class=line_place(numbers, line)[1],
        service=line.kind, times=_times(numbers, line), consumed=consumed, consumed_unit=consumed_unit,
        priced=priced, pricing_unit=unit,
        unit_usd=tier.usd if tier and exact_price else _DIGITS.divide(usd, priced),
        price_id=f"{places}/{line.tier or 'all'}", vm=None,
    )  # fmt: skip


def _vm_use(numbers: RunNumbers, line: CostLine, usd: Decimal, quantity: float) -> _Use:
    vm = next(row for row in numbers.vms if row.vm == line.src)
    seconds = Decimal(repr(quantity))
    hours = _DIGITS.divide(seconds, _HOUR_S)
    return _Use(
        provider=vm.location.split("/")[0], location=vm.location, link_class="", service=line.kind,
        times=_times(numbers, line), consumed=seconds, consumed_unit="Seconds", priced=hours,
        pricing_unit="Hours", unit_usd=vm.usd_per_h or _DIGITS.divide(usd, hours),
        price_id=(*vm.location.split("/"), "")[1], vm=vm,
    )  # fmt: skip


def _times(numbers: RunNumbers, line: CostLine) -> tuple[float, float]:
    """Start and end of a line's charge: its VM's lifetime, within the line's month if it has one."""
    run = run_times(numbers)
    names = (line.src, line.dst)
    party = next((row for name in names for row in numbers.vms if row.vm == name), None)
    lived = run
    if party is not None:
        lived = (party.requested_s, run[1] if party.ended_s is None else party.ended_s)
    if not all(0 <= at_s < _YEAR_10000_S for at_s in (*lived, *run)):  # False for NaN
        raise ExportError(
            f"{numbers.meta.run_id}: {line.what}: {lived[0]} to {lived[1]} are not valid unix seconds, so it cannot be a "
            "FOCUS row; `orch audit` shows what is wrong with the clocks"
        )
    for began_s, ended_s in (lived, run) if line.month else ():
        for start, end, month_start, _ in _months(math.floor(began_s), math.ceil(ended_s)):
            if _iso(month_start).startswith(line.month):
                return start, end
    return lived


def line_place(numbers: RunNumbers, line: CostLine) -> tuple[str, str]:
    """Return the place where a line of the bill is charged, and the class of egress; "" for unknown."""
    if line.kind in ("vm", "controller"):
        return next(row.location for row in numbers.vms if row.vm == line.src), ""
    here, there = _ends(numbers, line)
    classed = line.kind == "egress" and line.dst and line.what != "egress unknown"
    public = line.what == "egress same_zone_public"
    return here, (egress_class(here, there, public=public) or "") if classed else ""


def _ends(numbers: RunNumbers, line: CostLine) -> tuple[str, str]:
    """Source and destination of a line of bytes; a destination outside of the clouds is the internet."""
    known: Mapping[str, str] = {row.vm: row.location for row in numbers.vms} | dict(numbers.terms.locations)
    if line.src == STORE:
        return numbers.terms.store_location or "", known.get(line.dst, "")
    here = known.get(line.src, "")
    if line.dst == PRIVATE:
        return here, "/".join(here.split("/")[:2])
    there = (numbers.terms.store_location if line.dst == STORE else known.get(line.dst)) or INTERNET
    return here, there


def run_times(numbers: RunNumbers) -> tuple[float, float]:
    """Return the start and end of the run; a run in progress ends with its last record."""
    ends = [row.ended_s or row.requested_s for row in numbers.vms] + [e.ended_s for e in numbers.raw]
    begins = [row.requested_s for row in numbers.vms]
    began = numbers.meta.started_s or min(begins, default=0.0)
    return float(began), float(numbers.meta.ended_s or max([*ends, began]))


def _tier(line: CostLine, ladder: Ladder | None) -> Price | None:
    """The tier of the ladder that applies to the line."""
    if ladder is None:
        return None
    start = Decimal(line.tier.split()[0]) if line.tier else Decimal(0)
    return next((tier for tier in ladder.tiers if tier.tier_start == start), None)


def _description(line: CostLine, use: _Use, emulated: bool) -> str:
    what = f"{line.what} (quantity estimated: sent after the last record)" if line.estimated else line.what
    if use.vm is None:
        what += f" from {line.src} ({use.location})" + (f" to {line.dst}" if line.dst else "")
    else:
        what += f" at {use.location}"
    scale = "; emulated run, nothing was rented, quantities at full scale" if emulated else ""
    return f"Estimate of orch: {what}{scale}"


def _resource(line: CostLine, use: _Use) -> str:
    return use.vm.vm if use.vm else line.src


def _details(vm: VmRecord) -> str:
    name, _, count = vm.accelerator.partition(":")
    return json.dumps({"InstanceType": vm.instance, "GpuCount": int(count or 1), "x_GpuType": name})


def _city(location: str) -> str:
    try:
        return find(location).city
    except PlaceError:
        return ""


def _months(start_s: int, end_s: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide a time span by calendar months (UTC) into (start, end, month's start, month's end), unix seconds."""
    while start_s < end_s:
        day = datetime.fromtimestamp(start_s, UTC)
        first = datetime(day.year, day.month, 1, tzinfo=UTC)
        after = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
        end = min(end_s, int(after.timestamp()))
        yield start_s, end, int(first.timestamp()), int(after.timestamp())
        start_s = end


def _iso(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(amount: Decimal) -> str:
    """FOCUS's numeric format: digits and one point, without exponent or trailing zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
