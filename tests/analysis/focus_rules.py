"""The rules of the FOCUS 1.2 specification, written from its text, for checking a dataset that claims to be one.

Independent of `analysis.export`: it reads CSV text. Each finding names the row, the column, and the section of
focus.finops.org/focus-specification/v1-2 that the rule is from (a column's or an attribute's own section).
Rules about what only the data generator knows (that an invoice's sum is the same) cannot be checked.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple


class Finding(NamedTuple):
    """One broken rule; `row` counts data rows from 1, 0 is the header."""

    row: int
    column: str
    section: str
    problem: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Feature level "Mandatory" in each column's Content Constraints.
MANDATORY = _words(
    "BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory "
    "ChargeClass ChargeDescription ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName "
    "ListCost PricingQuantity PricingUnit ProviderName PublisherName ServiceCategory ServiceName"
)
# Of these "Allows nulls" is False.
_NEVER_NULL = _words(
    "BilledCost BillingAccountId BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory ChargePeriodEnd "
    "ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName ListCost ProviderName PublisherName "
    "ServiceCategory ServiceName ServiceSubcategory ChargeFrequency PricingCurrencyEffectiveCost"
)
_OTHER = _words(
    "AvailabilityZone BillingAccountType CapacityReservationId CapacityReservationStatus ChargeFrequency "
    "CommitmentDiscountCategory CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity "
    "CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit ConsumedQuantity ConsumedUnit "
    "ContractedUnitPrice InvoiceId ListUnitPrice PricingCategory PricingCurrency PricingCurrencyContractedUnitPrice "
    "PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice RegionId RegionName ResourceId ResourceName "
    "ResourceType ServiceSubcategory SkuId SkuMeter SkuPriceDetails SkuPriceId SubAccountId SubAccountName "
    "SubAccountType Tags"
)
_DECIMAL = _words(
    "BilledCost CommitmentDiscountQuantity ConsumedQuantity ContractedCost ContractedUnitPrice EffectiveCost ListCost "
    "ListUnitPrice PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice "
    "PricingQuantity"
)
_TIMES = ("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart")
_NOT_NEGATIVE = ("ListUnitPrice", "ContractedUnitPrice", "PricingCurrencyListUnitPrice")
_JSON = ("Tags", "SkuPriceDetails")
_UNITS = ("PricingUnit", "ConsumedUnit", "CommitmentDiscountUnit")
# Null for a tax, never null for a usage or purchase that corrects nothing.
_OF_USE = (
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "SkuId",
    "SkuPriceId",
    "ListUnitPrice",
    "ContractedUnitPrice",
)
# The second is null where the first is, and not null where it is not.
_TOGETHER = (
    ("BillingAccountId", "BillingAccountType"), ("RegionId", "RegionName"), ("ResourceId", "ResourceType"),
    ("SubAccountId", "SubAccountType"), ("ConsumedQuantity", "ConsumedUnit"), ("PricingQuantity", "PricingUnit"),
    ("CapacityReservationId", "CapacityReservationStatus"), ("CommitmentDiscountId", "CommitmentDiscountCategory"),
    ("CommitmentDiscountId", "CommitmentDiscountType"),
)  # fmt: skip
# The second is null where the first is.
_NULL_TOO = (
    ("ResourceId", "ResourceName"), ("SkuId", "SkuMeter"), ("SkuPriceId", "SkuPriceDetails"),
    ("SubAccountId", "SubAccountName"), ("CommitmentDiscountId", "CommitmentDiscountName"),
    ("CommitmentDiscountId", "CommitmentDiscountStatus"), ("CommitmentDiscountId", "CommitmentDiscountQuantity"),
)  # fmt: skip
_SUBCATEGORIES = {
    "AI and Machine Learning": "AI Platforms|Bots|Generative AI|Machine Learning|Natural Language Processing",
    "Analytics": "Analytics Platforms|Business Intelligence|Data Processing|Search|Streaming Analytics",
    "Business Applications": "Productivity and Collaboration",
    "Compute": "Containers|End User Computing|Quantum Compute|Serverless Compute|Virtual Machines",
    "Databases": "Caching|Data Warehouses|Ledger Databases|NoSQL Databases|Relational Databases|Time Series Databases",
    "Developer Tools": "Developer Platforms|Continuous Integration and Deployment|Development Environments|Source Code "
    "Management|Quality Assurance",
    "Identity": "Identity and Access Management",
    "Integration": "API Management|Messaging|Workflow Orchestration",
    "Internet of Things": "IoT Analytics|IoT Platforms",
    "Management and Governance": "Architecture|Compliance|Cost Management|Data Governance|Disaster Recovery|Endpoint "
    "Management|Observability|Support",
    "Media": "Content Creation|Gaming|Media Streaming|Mixed Reality",
    "Migration": "Data Migration|Resource Migration",
    "Mobile": "",
    "Multicloud": "Multicloud Integration",
    "Networking": "Application Networking|Content Delivery|Network Connectivity|Network Infrastructure|Network "
    "Routing|Network Security",
    "Security": "Secret Management|Security Posture Management|Threat Detection and Response",
    "Storage": "Backup Storage|Block Storage|File Storage|Object Storage|Storage Platforms",
    "Web": "Application Platforms",
    "Other": "",
}
_ALLOWED = {
    "ChargeCategory": ("Usage", "Purchase", "Tax", "Credit", "Adjustment"),
    "ChargeClass": ("Correction",),
    "ChargeFrequency": ("One-Time", "Recurring", "Usage-Based"),
    "PricingCategory": ("Standard", "Dynamic", "Committed", "Other"),
    "ServiceCategory": tuple(_SUBCATEGORIES),
    "CapacityReservationStatus": ("Used", "Unused"),
    "CommitmentDiscountCategory": ("Spend", "Usage"),
    "CommitmentDiscountStatus": ("Used", "Unused"),
}
_PLACEHOLDERS = {"null", "none", "n/a", "na", "nan", "-", "not applicable", "unknown", "undefined"}
_SKU_PROPERTIES = _words(
    "CoreCount DiskMaxIops DiskSpace DiskType GpuCount InstanceSeries InstanceType MemorySize NetworkMaxIops "
    "NetworkMaxThroughput OperatingSystem Redundancy StorageClass"
)
_BASE_UNIT = r"(?:[KMGTPE]i?[Bb]|[Bb]|Years?|Months?|Days?|Hours?|Minutes?|Seconds?|[A-Z][A-Za-z]*s?)"  # sizes, times, counts
_UNIT = re.compile(rf"(?:\d+ )?{_BASE_UNIT}(?:-{_BASE_UNIT})?(?:/(?:\d+ )?{_BASE_UNIT})?")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TOLERANCE = Decimal("1e-12")  # relative; the spec leaves precision to the data generator
_ISO_4217 = _words(
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE "
    "CHF CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD "
    "HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD "
    "MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR "
    "RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH "
    "UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG"
)


def findings(text: str) -> list[Finding]:
    """Return every violated rule of a dataset given as CSV, where an empty cell is null."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = next(lines)
    found = list(_header(header))
    parents: dict[str, str | None] = {}
    services: dict[tuple[str | None, str | None], tuple[str | None, str | None]] = {}
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(header):
            found.append(Finding(number, "", "Column Handling", f"{len(cells)} cells, {len(header)} columns"))
            continue
        row = {name: cell or None for name, cell in zip(header, cells, strict=True)}
        problems = list(_row(row))
        found += [Finding(number, *problem) for problem in problems]
        if not problems:
            found += [Finding(number, *problem) for problem in _arithmetic(row)]
        sku = row.get("SkuPriceId")
        if sku and parents.setdefault(sku, row.get("SkuId")) != row.get("SkuId"):
            found.append(Finding(number, "SkuPriceId", "SKU Price ID", f"{sku} has a second parent SkuId"))
        service = row.get("ProviderName"), row.get("ServiceName")
        kind = row.get("ServiceCategory"), row.get("ServiceSubcategory")
        if services.setdefault(service, kind) != kind:
            found.append(
                Finding(number, "ServiceCategory", "Service Category", f"{service} has two categories")
            )
    return found


def _header(header: list[str]) -> Iterator[Finding]:
    known = {*MANDATORY, *_OTHER}
    for name in MANDATORY:
        if name not in header:
            yield Finding(0, name, name, "MUST be present")
    for name in {n for n in header if header.count(n) > 1}:
        yield Finding(0, name, "Column Handling", "is there twice")
    for name in header:
        if name not in known and not re.fullmatch(r"x_[A-Z][A-Za-z0-9]*", name):
            yield Finding(
                0, name, "Column Handling", "is no FOCUS column, and a custom one MUST begin with x_"
            )
    custom = [name.startswith("x_") for name in header]
    if custom != sorted(custom):
        yield Finding(0, "", "Column Handling", "FOCUS columns SHOULD come before custom ones")


def _row(row: dict[str, str | None]) -> Iterator[tuple[str, str, str]]:
    """(column, section, problem) for each invalid single value of a row."""
    for name, value in row.items():
        if value is None:
            if name in _NEVER_NULL:
                yield name, name, "MUST NOT be null"
            continue
        if name.startswith("x_"):
            continue
        if not value.strip() or value.strip().casefold() in _PLACEHOLDERS:
            yield name, "Null Handling", f"placeholder {value!r}"
        if name in _DECIMAL and not _NUMBER.fullmatch(value):
            yield name, "Numeric Format", f"{value!r}"
        elif name in _NOT_NEGATIVE and Decimal(value) < 0:
            yield name, name, "MUST NOT be negative"
        if name in _TIMES and not _is_time(value):
            yield name, "Date/Time Format", f"{value!r}"
        if name in ("BillingCurrency", "PricingCurrency") and value not in _ISO_4217:
            yield name, "Currency Format", f"{value!r}"
        if name in _UNITS and not _UNIT.fullmatch(value):
            yield name, "Unit Format", f"{value!r}"
        if name in _JSON:
            yield from _key_values(name, value)
        if name in _ALLOWED and value not in _ALLOWED[name]:
            yield name, name, f"{value!r} is no allowed value"
    yield from _relations(row)


def _relations(row: dict[str, str | None]) -> Iterator[tuple[str, str, str]]:
    category, corrected = row.get("ChargeCategory"), row.get("ChargeClass") == "Correction"
    for name in _OF_USE:
        if name in row and row[name] is None and category in ("Usage", "Purchase") and not corrected:
            yield name, name, f"MUST NOT be null when ChargeCategory is {category}"
        if row.get(name) is not None and category == "Tax":
            yield name, name, "MUST be null when ChargeCategory is Tax"
    unused = row.get("CommitmentDiscountStatus") == "Unused"
    if "ConsumedQuantity" in row:
        quantity = row["ConsumedQuantity"]
        if category == "Usage" and not corrected and not unused and quantity is None:
            yield "ConsumedQuantity", "ConsumedQuantity", "MUST NOT be null for usage"
        if quantity is not None and (category != "Usage" or unused):
            yield "ConsumedQuantity", "ConsumedQuantity", "MUST be null for what is not used"
        if quantity and _NUMBER.fullmatch(quantity) and Decimal(quantity) <= 0 and not corrected:
            yield "ConsumedQuantity", "ConsumedQuantity", "MUST be positive"
    for first, second in _TOGETHER:
        if first in row and second in row and (row[first] is None) != (row[second] is None):
            yield second, second, f"MUST be null exactly when {first} is"
    for first, second in _NULL_TOO:
        if row.get(first) is None and row.get(second) is not None:
            yield second, second, f"MUST be null when {first} is"
    if category == "Purchase" and row.get("ChargeFrequency") == "Usage-Based":
        yield "ChargeFrequency", "ChargeFrequency", "MUST NOT be Usage-Based for a purchase"
    parent, child = row.get("ServiceCategory"), row.get("ServiceSubcategory")
    if (
        parent in _SUBCATEGORIES
        and child
        and child not in (*_SUBCATEGORIES[parent].split("|"), f"Other ({parent})")
    ):
        yield "ServiceSubcategory", "ServiceSubcategory", f"{child!r} is no child of {parent}"


def _arithmetic(row: dict[str, str | None]) -> Iterator[tuple[str, str, str]]:
    """Rules that involve several values of a row, whose single values are valid."""
    value = {name: row.get(name) or "" for name in row}
    if row.get("ChargeClass") != "Correction":
        for cost, price in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
            if value.get(price) and value.get("PricingQuantity"):
                product = Decimal(value[price]) * Decimal(value["PricingQuantity"])
                if abs(product - Decimal(value[cost])) > _TOLERANCE * max(
                    abs(product), abs(Decimal(value[cost]))
                ):
                    yield cost, cost, f"MUST be {price} times PricingQuantity, {product}"
    starts, ends = value["ChargePeriodStart"], value["ChargePeriodEnd"]
    if starts >= ends:
        yield "ChargePeriodEnd", "Charge Period End", "is exclusive, so MUST be after ChargePeriodStart"
    if value["BillingPeriodStart"] >= value["BillingPeriodEnd"]:
        yield "BillingPeriodEnd", "Billing Period End", "is exclusive, so MUST be after BillingPeriodStart"
    if not value["BillingPeriodStart"] <= starts < ends <= value["BillingPeriodEnd"]:
        yield "ChargePeriodStart", "Billing Period Start", "the charge is not within its billing period"
    if (
        value["ChargeCategory"] in ("Tax", "Credit", "Adjustment")
        and value["EffectiveCost"] != value["BilledCost"]
    ):
        yield "EffectiveCost", "Effective Cost", "MUST match BilledCost"


def _key_values(name: str, text: str) -> Iterator[tuple[str, str, str]]:
    try:
        known = json.loads(text)
    except ValueError:
        yield name, "Key-Value Format", "is no JSON"
        return
    if not isinstance(known, dict) or any(isinstance(value, dict | list) for value in known.values()):
        yield name, "Key-Value Format", "MUST be one JSON object of plain values"
        return
    if name == "SkuPriceDetails":
        for key in known:
            if key not in _SKU_PROPERTIES and not key.startswith("x_"):
                yield (
                    name,
                    "SKU Price Details",
                    f"{key} is no FOCUS property, and a custom one MUST begin with x_",
                )


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
