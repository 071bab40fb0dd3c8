"""Cloud vendors, one record each.

To add one, write a module here, list it in `VENDORS` and add its rows to `cloud/places.csv`. Imports only the standard
library, so that peers can import it too.
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
"""All vendors by name, in the order in which they are shown."""

RENTABLE = {name: vendor for name, vendor in VENDORS.items() if vendor.rents_vms}
"""The vendors whose VMs are rented through SkyPilot."""

__all__ = ["AWS", "RENTABLE", "VENDORS", "CredentialFile", "FocusNames", "Vendor"]
