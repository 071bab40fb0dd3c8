"""The vendors, one record each: a new one is a module here and a line below, beside its rows of `cloud/places.csv`.

Imports nothing but the standard library, so that peers may import it too.
"""

from __future__ import annotations

from cloud.vendors.aws import AWS
from cloud.vendors.azure import AZURE
from cloud.vendors.b2 import B2
from cloud.vendors.gcp import GCP
from cloud.vendors.lambda_ import LAMBDA
from cloud.vendors.r2 import R2
from cloud.vendors.record import CredentialFile, FocusNames, Vendor

VENDORS = {vendor.name: vendor for vendor in (AWS, GCP, AZURE, LAMBDA, B2, R2)}
"""All vendors by name, in the order in which they are listed."""

RENTED = {name: vendor for name, vendor in VENDORS.items() if vendor.rents_vms}
"""Those whose VMs are rented through SkyPilot."""

__all__ = ["AWS", "RENTED", "VENDORS", "CredentialFile", "FocusNames", "Vendor"]
