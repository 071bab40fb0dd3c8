"""Compares a run's estimate with a provider's bill, by service. Pure, over the rows of a FOCUS export."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from analysis.export.bill_file import BillError, BillRow
from analysis.export.bill_services import UNCLASSED, service_of
from analysis.export.focus import line_place, run_times
from analysis.export.providers import provider_of
from cloud.prices.book import exact
from metrics.run import RunNumbers

TAG = "orch-run"  # the tag with the run's id on everything rented for it
_Usd = TypeVar("_Usd", Decimal, Decimal | None)


class Absence(StrEnum):
    """The note of a row that is only in the estimate or only on the bill."""

    FROM_BILL = "not on this bill"
    FROM_ESTIMATE = "not in the estimate"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service of one provider. None: unknown, or absent (see `note`)."""

    provider: str
    service: str
    estimate_usd: Decimal | None
    bill_usd: Decimal | None
    difference_usd: Decimal | None  # bill less estimate
    difference_pct: float | None  # of the estimate
    charges: int  # rows of the bill
    note: str  # an Absence, or free text

    @property
    def one_sided(self) -> bool:
        """Whether it is only in the estimate or only on the bill."""
        return isinstance(self.note, Absence)


@dataclass(frozen=True)
class BillComparison:
    """The result of `orch bill`."""

    run_id: str
    selected_by: str  # "tag", "names" or "time and regions"
    read: int  # rows of the file
    selected: int
    rows: tuple[ServiceRow, ...]
    total: ServiceRow  # of the providers on the bill
    unmatched_estimate: tuple[str, ...]  # the run's VMs that are not on the bill, if it names VMs
    unmatched_bill: tuple[str, ...]  # VMs of the bill that are not the run's
    warnings: tuple[str, ...]


def compare_bill(numbers: RunNumbers, bill: Iterable[BillRow], file: str) -> BillComparison:
    """Compare a run's estimate with a bill. Raises BillError if no row belongs to the run, or one of its rows is invalid."""
    run_id = str(numbers.meta.run_id)
    selected_by, chosen, read = _select(numbers, bill, file)
    warnings = _warnings(numbers, selected_by)
    billed: dict[tuple[str, str], list[Decimal]] = {}
    named: set[str] = set()
    for row in chosen:
        currency = row.text("BillingCurrency")
        if currency != "USD":
            raise BillError(
                f"{row.where}: BillingCurrency: '{currency}' is not USD, the currency of the estimate; "
                "export the bill in US dollars"
            )
        service = service_of(row)
        key = provider_of(_provider_name(row)), service
        billed.setdefault(key, []).append(row.amount("BilledCost"))
        if service in ("vm", "controller"):
            named |= {name for name in _names(row)[:1] if name}
    estimated = _estimates(numbers)
    providers = {provider for provider, _ in billed}
    for provider in sorted({p for p, service in billed if service == UNCLASSED}):
        warnings.append(
            f"The bill does not give the class of all of {provider}'s egress, so its egress is compared as one sum."
        )
        billed, estimated = _one_egress(provider, billed), _one_egress(provider, estimated)
    rows = [
        _row(*key, estimated.get(key), billed.get(key)) for key in sorted(estimated.keys() | billed.keys())
    ]
    ours = {row.vm for row in numbers.vms if row.location.split("/")[0] in providers}
    return BillComparison(
        run_id=run_id,
        selected_by=selected_by,
        read=read,
        selected=len(chosen),
        rows=tuple(row for row in rows if row.estimate_usd != 0 or row.bill_usd),
        total=_row(
            "",
            "total",
            [usd for (p, _), part in estimated.items() if p in providers for usd in part],
            [usd for part in billed.values() for usd in part],
        ),
        unmatched_estimate=tuple(sorted(ours - _ours_named(chosen, ours))) if named else (),
        unmatched_bill=tuple(sorted(named - ours)) if _ours_named(chosen, ours) else (),
        warnings=tuple(warnings),
    )


def _warnings(numbers: RunNumbers, selected_by: str) -> list[str]:
    warnings: list[str] = []
    if selected_by == "names":
        warnings.append(f"No row has the tag {TAG}; the rows that name the run's VMs are used.")
    if selected_by == "time and regions":
        warnings.append(
            f"No row has the tag {TAG} or names a VM of the run; all usage in the run's regions during the run is "
            "used, which may include usage of others."
        )
    if numbers.meta.emulated:
        warnings.append("The run was emulated: nothing was rented for it, so no provider billed it.")
    return warnings


def _select(numbers: RunNumbers, bill: Iterable[BillRow], file: str) -> tuple[str, list[BillRow], int]:
    """(criterion, rows, number of rows read). Selects by tag, otherwise by the VMs' names, otherwise by time and region."""
    run_id = str(numbers.meta.run_id)
    vms = {row.vm for row in numbers.vms}
    places = {tuple(row.location.split("/")[:2]) for row in numbers.vms}
    tagged: list[BillRow] = []
    by_name: list[BillRow] = []
    near: list[BillRow] = []
    began_s, ended_s = run_times(numbers)
    read = 0
    for row in bill:
        read += 1
        if any(re.split(r"[/:]", key)[-1] == TAG and tag == run_id for key, tag in row.tags().items()):
            tagged.append(row)
        elif not vms.isdisjoint(_names(row)):
            by_name.append(row)
        elif (
            not tagged
            and not by_name
            and (provider_of(_provider_name(row)), row.text("RegionId")) in places
            and _maybe_within(row, began_s, ended_s)
        ):
            near.append(row)
    if tagged:
        return "tag", tagged, read
    if by_name:
        return "names", by_name, read
    within = [row for row in near if _within(row, began_s, ended_s)]
    if within:
        return "time and regions", within, read
    raise BillError(
        f"{file}: none of its {read} rows belongs to run {run_id}: no tag {TAG}, no name of its VMs, no usage in its "
        "regions during the run; export the days of the run, with tags"
    )


def _within(row: BillRow, began_s: float, ended_s: float) -> bool:
    return row.time_s("ChargePeriodStart") < ended_s and row.time_s("ChargePeriodEnd") > began_s


def _maybe_within(row: BillRow, began_s: float, ended_s: float) -> bool:
    """`_within`, but True for an invalid time, which is an error only if the row is needed."""
    try:
        return _within(row, began_s, ended_s)
    except BillError:
        return True


def _names(row: BillRow) -> list[str]:
    """The names that a row has for its resource: its name, the end of its id, its tag `Name`."""
    tail = re.split(r"[/:]", row.text("ResourceId"))[-1]
    return [row.text("ResourceName"), tail, row.tags().get("Name", "")]


def _ours_named(chosen: Sequence[BillRow], ours: set[str]) -> set[str]:
    return {name for row in chosen for name in _names(row) if name in ours}


def _provider_name(row: BillRow) -> str:
    return row.text("ProviderName", "ServiceProviderName", "InvoiceIssuerName", "PublisherName")


def _estimates(numbers: RunNumbers) -> dict[tuple[str, str], list[Decimal | None]]:
    """The ledger's dollars by provider and service."""
    found: dict[tuple[str, str], list[Decimal | None]] = {}
    for line in numbers.bill.lines:
        location, link_class = line_place(numbers, line)
        # Bills use one name for bytes between zones and bytes to public addresses in a zone.
        named = "inter_zone" if link_class == "same_zone_public" else link_class
        service = f"egress {named}".strip() if line.kind == "egress" else line.kind
        found.setdefault((location.split("/")[0] or "unknown", service), []).append(line.usd)
    return found


def _one_egress(provider: str, parts: dict[tuple[str, str], list[_Usd]]) -> dict[tuple[str, str], list[_Usd]]:
    """Merge all egress of the provider into one service."""
    merged: dict[tuple[str, str], list[_Usd]] = {}
    for (owner, service), amounts in parts.items():
        is_egress = owner == provider and service.startswith("egress")
        merged.setdefault((owner, "egress" if is_egress else service), []).extend(amounts)
    return merged


def _row(
    provider: str, service: str, estimate: Sequence[Decimal | None] | None, bill: Sequence[Decimal] | None
) -> ServiceRow:
    known = [usd for usd in estimate or () if usd is not None]
    with exact():
        ours = sum(known, Decimal(0)) if estimate is not None and len(known) == len(estimate) else None
        theirs = sum(bill, Decimal(0)) if bill is not None else None
        difference = theirs - ours if ours is not None and theirs is not None else None
    note = Absence.FROM_ESTIMATE if estimate is None else Absence.FROM_BILL if bill is None else ""
    return ServiceRow(
        provider=provider,
        service=service,
        estimate_usd=ours,
        bill_usd=theirs,
        difference_usd=difference,
        difference_pct=float(difference / ours * 100) if difference is not None and ours else None,
        charges=len(bill or ()),
        note=note or ("estimate unknown" if ours is None else ""),
    )
