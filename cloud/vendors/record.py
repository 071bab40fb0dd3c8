"""The record of a vendor: everything the code knows about it except its places and prices, which are data files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloud.vendors.notices import Ask, Look


@dataclass(frozen=True, slots=True)
class FocusNames:
    """The names of the vendor and its services in the vendor's own FOCUS exports."""

    provider: str
    vms: str = "Virtual machines"
    network: str = "Data transfer"
    storage: str = "Object storage"


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """A file in which the vendor's own tools store credentials."""

    path: str  # below the user's home
    words: tuple[str, ...] = ()  # the file counts if it contains one of these; (): if it exists
    variable: str = ""  # environment variable that overrides the file's path
    folder_variable: str = ""  # environment variable that overrides the folder of the file


@dataclass(frozen=True, eq=False, kw_only=True)
class Vendor:
    """One vendor. The defaults are those of an object store, where no VM is rented."""

    name: str  # the first part of a location, and SkyPilot's name for the cloud
    title: str  # the name used in sentences
    focus: FocusNames
    # Lower case; a bill belongs to this vendor if its ProviderName contains one of them.
    bill_words: tuple[str, ...]

    rents_vms: bool = False  # whether orch rents VMs there, through SkyPilot
    rents_spot: bool = True
    shares_network: bool = False
    """Whether VMs that SkyPilot rents in one region reach each other at internal addresses."""

    credential_variables: tuple[str, ...] = ()  # credentials exist if all of these are set
    credential_files: tuple[CredentialFile, ...] = ()  # ... or if one of these files counts
    sign_in: str = ""  # instruction for a user without credentials
    packages: tuple[str, ...] = ()  # imported by SkyPilot for this cloud: `skypilot[name]` installs them
    api_url: str = ""  # answers without credentials, with the date
    api_url_variable: str = ""  # environment variable that overrides the URL

    skypilot_switch: bool = False  # whether SkyPilot's configuration of this cloud supports `remote_identity`
    identity: Literal["role", "service_account", "uploaded"] = "uploaded"
    """How a VM may end itself: with an instance profile that orch creates, with SkyPilot's service account, or with the
    user's credentials, which SkyPilot uploads."""

    # SkyPilot's catalog has zone ids, translated by a file of the user's account.
    catalog_zone_ids: bool = False
    cpu_instances: str = ""  # regex: the families that SkyPilot prefers if only CPUs are requested
    accelerator_host: Callable[[str, int], str] | None = None
    """Map an accelerator and its count to a regex of the VMs it is attached to; None: catalog rows are whole VMs."""
    instance_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The vendor's instance names by the names that the paper uses."""

    address_command: str = ""  # shell command that prints the VM's public address, from the metadata service
    notices: Callable[[Ask, Callable[[], float]], Look] | None = None
    """Create a reader of spot notices from the metadata service and unix time; None: the vendor gives no notice."""

    def has(self, location: str) -> bool:
        """Whether a location (`cloud/region[/zone]`) belongs to this vendor."""
        return location.startswith(f"{self.name}/")
