"""Maps rows of a provider's bill to the services of our ledger. Pure.

FOCUS's categories distinguish compute, networking and storage. The class of egress is only given in the provider's own
terms (SKU, meter, description), which differ by provider and change over time. Unrecognised egress gets the class
`UNCLASSED` and is never guessed.
"""

from __future__ import annotations

import re

from analysis.export.bill_file import BillRow
from cloud.prices.classes import EGRESS_CLASSES

UNCLASSED = "egress, class unknown"

_TRANSFER = re.compile(
    r"egress|data.?transfer|bandwidth|(?:out|in|regional)-bytes|inter.?zone|inter.?region|inter.?continent"
)
_INGRESS = re.compile(r"ingress|data.?transfer.?in\b|[^r]in-bytes|data processed in")
_DISK = re.compile(r"\bpd\b|persistent disk|\bebs\b|volume ?usage|managed disk|capacity in")
_ADDRESS = re.compile(r"\bip (?:charge|address)|static ip|external ip|elastic ip|ipv4")
_CLASSES = (  # the first match counts; classes that need both ends are in `link_class_of`
    ("same_zone", re.compile(r"intra.?zone|same.?zone|within (?:a|one|the same) zone")),
    (
        "inter_zone",
        re.compile(r"inter.?zone|inter.?az|between zones|availability zones|regional-bytes|intra.?region"),
    ),
    (
        "internet",
        re.compile(
            r"internet|premium tier|standard tier|datatransfer-out-bytes|standard data transfer out|rtn preference"
        ),
    ),
    ("between_clouds", re.compile(r"between.?clouds")),
    ("inter_region", re.compile(r"intra.?continent")),
    ("inter_continent", re.compile(r"inter.?continent")),
)
_PLACES = (  # the words for places on bills, by continent; longer ones first
    ("SA", r"south america|latin america|s[aã]o paulo|santiago|\bsa[en]\d"),
    ("AUS", r"australia|oceania|sydney|melbourne|\bau[se]\d|\baps[24]"),
    ("EU", r"emea|europe|london|frankfurt|paris|netherlands|belgium|finland|\beu\b|\beu[wcns]\d"),
    ("ASIA", r"apac|asia|japan|tokyo|osaka|korea|seoul|singapore|hong kong|taiwan|india|mumbai|\bap[nse]\d"),
    ("US", r"america|united states|canada|virginia|oregon|iowa|ohio|\bus\b|\bus[ew]\d|\bca[nc]\d"),
)
_CONTINENTS = re.compile("|".join(f"(?P<{name}>{words})" for name, words in _PLACES))


def service_of(row: BillRow) -> str:
    """Return the service of a row.

    One of `vm`, `controller`, `egress <class>`, `data` (read from a store), `storage`, `disk`, `ip address` and
    `ingress`; `tax`, `credit` and the like by their category; any other service by its own name.
    """
    category = row.text("ChargeCategory").casefold()
    if category not in ("", "usage"):
        return category
    words = _words(row)
    service = row.text("ServiceCategory").casefold()
    if _ADDRESS.search(words):
        return "ip address"
    if _INGRESS.search(words):
        return "ingress"
    if _TRANSFER.search(words):
        if service == "storage":
            return "data"
        link = link_class_of(row)
        return f"egress {link}" if link else UNCLASSED
    if _DISK.search(words):
        return "disk"
    if service == "compute":
        return "controller" if "controller" in row.text("ResourceName").casefold() else "vm"
    return "storage" if service == "storage" else row.text("ServiceName")


def link_class_of(row: BillRow) -> str | None:
    """Return the egress class that the row's words give; None if they give none."""
    own = row.text("x_LinkClass")  # of our own FOCUS exports
    if own in EGRESS_CLASSES:
        return own
    words = _words(row)
    for name, pattern in _CLASSES:
        if pattern.search(words):
            return name
    ends = [found.lastgroup for found in _CONTINENTS.finditer(words)]
    if len(ends) >= 2:
        if ends[0] == ends[1]:
            return "inter_region"
        return "oceania" if "AUS" in ends[:2] else "inter_continent"
    return "inter_region" if re.search(r"inter.?region|between regions", words) else None


def _words(row: BillRow) -> str:
    columns = (
        "SkuMeter",
        "ChargeDescription",
        "SkuId",
        "ServiceSubcategory",
        "x_SkuDescription",
        "x_UsageType",
    )
    words = " ".join(row.text(column) for column in columns).casefold()
    name = row.text("ResourceName").casefold()  # a VM may be called egress-test-p0
    return words.replace(name, "") if name else words
