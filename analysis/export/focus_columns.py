"""The columns of the FOCUS 1.2 cost and usage dataset (focus.finops.org/focus-specification/v1-2), and ours."""

from __future__ import annotations

FOCUS_VERSION = "1.2"

# Name: the specification's data type. All columns of the version are included, so that any FOCUS reader accepts the
# file. Columns that orch cannot fill (commitments, reservations, invoices, sub accounts) are empty.
FOCUS_COLUMNS: dict[str, str] = {
    "AvailabilityZone": "String",
    "BilledCost": "Decimal",
    "BillingAccountId": "String",
    "BillingAccountName": "String",
    "BillingAccountType": "String",
    "BillingCurrency": "String",
    "BillingPeriodEnd": "Date/Time",
    "BillingPeriodStart": "Date/Time",
    "CapacityReservationId": "String",
    "CapacityReservationStatus": "String",
    "ChargeCategory": "String",
    "ChargeClass": "String",
    "ChargeDescription": "String",
    "ChargeFrequency": "String",
    "ChargePeriodEnd": "Date/Time",
    "ChargePeriodStart": "Date/Time",
    "CommitmentDiscountCategory": "String",
    "CommitmentDiscountId": "String",
    "CommitmentDiscountName": "String",
    "CommitmentDiscountQuantity": "Decimal",
    "CommitmentDiscountStatus": "String",
    "CommitmentDiscountType": "String",
    "CommitmentDiscountUnit": "String",
    "ConsumedQuantity": "Decimal",
    "ConsumedUnit": "String",
    "ContractedCost": "Decimal",
    "ContractedUnitPrice": "Decimal",
    "EffectiveCost": "Decimal",
    "InvoiceId": "String",
    "InvoiceIssuerName": "String",
    "ListCost": "Decimal",
    "ListUnitPrice": "Decimal",
    "PricingCategory": "String",
    "PricingCurrency": "String",
    "PricingCurrencyContractedUnitPrice": "Decimal",
    "PricingCurrencyEffectiveCost": "Decimal",
    "PricingCurrencyListUnitPrice": "Decimal",
    "PricingQuantity": "Decimal",
    "PricingUnit": "String",
    "ProviderName": "String",
    "PublisherName": "String",
    "RegionId": "String",
    "RegionName": "String",
    "ResourceId": "String",
    "ResourceName": "String",
    "ResourceType": "String",
    "ServiceCategory": "String",
    "ServiceName": "String",
    "ServiceSubcategory": "String",
    "SkuId": "String",
    "SkuMeter": "String",
    "SkuPriceDetails": "JSON",
    "SkuPriceId": "String",
    "SubAccountId": "String",
    "SubAccountName": "String",
    "SubAccountType": "String",
    "Tags": "JSON",
}

CUSTOM_COLUMNS: dict[str, str] = {
    "x_Destination": "String",  # destination of the bytes: a VM, the store, an address
    "x_Emulated": "String",  # true: nothing was rented; false
    "x_Estimate": "String",  # always true: computed from records and list prices, not billed
    "x_Kind": "String",  # the kind of the ledger's line: vm, egress, data, storage, controller
    "x_LinkClass": "String",  # of egress: same_zone, inter_zone, ..., see docs/numbers.md
    "x_PriceBook": "String",
    "x_PriceSource": "String",
    "x_RunId": "String",
    "x_Source": "String",  # the VM or store that sent the bytes, or the VM itself
}
