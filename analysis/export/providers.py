"""How the providers call themselves and their services in FOCUS exports of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """What FOCUS says of a service; category and subcategory are of its lists of allowed values."""

    name: str
    category: str
    subcategory: str
    meter: str
    resource_type: str


@dataclass(frozen=True, slots=True)
class Names:
    """A provider's name and those of the services that a run uses."""

    provider: str
    vms: str = "Virtual machines"
    network: str = "Data transfer"
    storage: str = "Object storage"

    def service(self, key: str) -> Service:
        """`key`: vm, controller, egress, data (reading from the store) or storage."""
        match key:
            case "vm" | "controller":
                return Service(self.vms, "Compute", "Virtual Machines", "Compute usage", "Virtual machine")
            case "egress":
                return Service(
                    self.network, "Networking", "Network Connectivity", "Data transfer out", "Virtual machine"
                )
            case "data":
                return Service(self.storage, "Storage", "Object Storage", "Data transfer out", "Object store")
            case _:
                return Service(self.storage, "Storage", "Object Storage", "Storage", "Object store")


_NAMES = {
    "gcp": Names("Google Cloud", "Compute Engine", "Networking", "Cloud Storage"),
    "aws": Names("AWS", "Amazon Elastic Compute Cloud", "AWS Data Transfer", "Amazon Simple Storage Service"),
    "azure": Names("Microsoft", "Virtual Machines", "Bandwidth", "Storage Accounts"),
    "lambda": Names("Lambda", "On-demand cloud"),
    "b2": Names("Backblaze", storage="B2 Cloud Storage"),
}
_WORDS = {
    "gcp": ("google", "gcp"),
    "aws": ("aws", "amazon"),
    "azure": ("microsoft", "azure"),
    "b2": ("backblaze",),
    "lambda": ("lambda",),
}


def names_of(provider: str) -> Names:
    """The names of a provider as in locations (`gcp`); one that is not known goes by that name itself."""
    return _NAMES.get(provider) or Names(provider or "unknown")


def provider_of(name: str) -> str:
    """The other way: the provider as in locations that a bill's ProviderName means."""
    folded = name.casefold()
    return next((key for key, words in _WORDS.items() if any(word in folded for word in words)), folded)
