"""Names of providers and their services in their own FOCUS exports."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.vendors import VENDORS, FocusNames


@dataclass(frozen=True, slots=True)
class Service:
    """A service in FOCUS terms; category and subcategory are from its lists of allowed values."""

    name: str
    category: str
    subcategory: str
    meter: str
    resource_type: str


def service_of(names: FocusNames, key: str) -> Service:
    """Return the service of a ledger line. `key`: vm, controller, egress, data (read from the store), storage."""
    match key:
        case "vm" | "controller":
            return Service(names.vms, "Compute", "Virtual Machines", "Compute usage", "Virtual machine")
        case "egress":
            return Service(
                names.network, "Networking", "Network Connectivity", "Data transfer out", "Virtual machine"
            )
        case "data":
            return Service(names.storage, "Storage", "Object Storage", "Data transfer out", "Object store")
        case _:
            return Service(names.storage, "Storage", "Object Storage", "Storage", "Object store")


def names_of(provider: str) -> FocusNames:
    """Return the FOCUS names of a provider given as in locations (`gcp`); an unknown provider keeps its name."""
    vendor = VENDORS.get(provider)
    return vendor.focus if vendor else FocusNames(provider or "unknown")


def provider_of(name: str) -> str:
    """Map a bill's ProviderName to the provider as in locations; an unknown one becomes its name in lower case."""
    folded = name.casefold()
    return next((v.name for v in VENDORS.values() if any(word in folded for word in v.bill_words)), folded)
