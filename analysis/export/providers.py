"""How the providers call themselves and their services in FOCUS exports of their own."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.vendors import VENDORS, FocusNames


@dataclass(frozen=True, slots=True)
class Service:
    """What FOCUS says of a service; category and subcategory are of its lists of allowed values."""

    name: str
    category: str
    subcategory: str
    meter: str
    resource_type: str


def service_of(names: FocusNames, key: str) -> Service:
    """The service that a line of the ledger is for; `key`: vm, controller, egress, data (reading from the store), storage."""
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
    """The names of a provider as in locations (`gcp`); an unknown one has that name itself."""
    vendor = VENDORS.get(provider)
    return vendor.focus if vendor else FocusNames(provider or "unknown")


def provider_of(name: str) -> str:
    """The provider as in locations that a bill's ProviderName means; of an unknown one the name in lower case."""
    folded = name.casefold()
    return next((v.name for v in VENDORS.values() if any(word in folded for word in v.bill_words)), folded)
