"""The record of a vendor: what the code knows of it beside its places and prices, which are data files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloud.vendors.notices import Ask, Look


@dataclass(frozen=True, slots=True)
class FocusNames:
    """What the vendor calls itself and the services that a run uses in its own FOCUS exports."""

    provider: str
    vms: str = "Virtual machines"
    network: str = "Data transfer"
    storage: str = "Object storage"


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """A file in which the vendor's own tools keep credentials."""

    path: str  # below the user's home
    words: tuple[str, ...] = ()  # the file counts if it contains one of these; (): if it exists
    variable: str = ""  # environment variable with another path of the file
    folder_variable: str = ""  # environment variable with another path of the file's folder


@dataclass(frozen=True, eq=False, kw_only=True)
class Vendor:
    """One vendor. The defaults are those of a store: nothing is rented there."""

    name: str  # the first part of a location, and SkyPilot's name of the cloud
    title: str  # in sentences
    focus: FocusNames
    bill_words: tuple[str, ...]  # lower case; a bill whose ProviderName contains one is this vendor's

    rents_vms: bool = False  # whether orch rents VMs there, through SkyPilot
    rents_spot: bool = True
    shares_network: bool = False
    """Whether SkyPilot's VMs of one region reach each other at internal addresses."""

    credential_variables: tuple[str, ...] = ()  # credentials are there if all of them are set
    credential_files: tuple[CredentialFile, ...] = ()  # else if one of these files counts
    sign_in: str = ""  # what a user without credentials is told to do
    packages: tuple[str, ...] = ()  # imported by SkyPilot for this cloud: `skypilot[name]` brings them
    api_url: str = ""  # answers without credentials, with the date
    api_url_variable: str = ""  # environment variable with another URL

    skypilot_switch: bool = False  # whether SkyPilot's configuration of the cloud knows `remote_identity`
    identity: Literal["role", "service_account", "uploaded"] = "uploaded"
    """How a VM may end itself: an instance profile that orch makes, SkyPilot's service account, or the user's
    credentials, which SkyPilot uploads."""

    catalog_zone_ids: bool = False  # SkyPilot's catalog has zone ids, which an account's own file translates
    cpu_instances: str = ""  # regex: the families that SkyPilot takes first where only CPUs are requested
    accelerator_host: Callable[[str, int], str] | None = None
    """Accelerator and count to a regex of the VMs that it is attached to; None: the catalog's rows are whole VMs."""
    instance_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The study's name of a VM to the vendor's."""

    address_command: str = ""  # shell: print the VM's public address, by the metadata service
    notices: Callable[[Ask, Callable[[], float]], Look] | None = None
    """Make a reader of spot notices from the metadata service and unix time; None: no notice is given."""

    def has(self, location: str) -> bool:
        """Whether a location (`cloud/region[/zone]`) is this vendor's."""
        return location.startswith(f"{self.name}/")
