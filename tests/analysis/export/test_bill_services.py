"""The service of a bill's row, by the terms of Google Cloud, AWS and Azure."""

from __future__ import annotations

import pytest

from analysis.export.bill_file import BillRow
from analysis.export.bill_services import UNCLASSED, service_of


@pytest.mark.parametrize(
    ("words", "service"),
    [
        # Google Cloud's SKUs
        ("N1 Predefined Instance Core running in Americas", "vm"),
        ("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", "vm"),
        ("Storage PD Capacity", "disk"),
        ("External IP Charge on a Spot Preemptible VM", "ip address"),
        ("Network Inter Zone Data Transfer Out", "egress inter_zone"),
        ("Network Intra Zone Egress", "egress same_zone"),
        ("Network Inter Region Egress from Americas to Americas", "egress inter_region"),
        ("Network Inter Region Data Transfer Out from Americas to EMEA", "egress inter_continent"),
        ("Network Inter Region Data Transfer Out from Western Europe to Australia", "egress oceania"),
        ("Network Internet Egress from Americas to EMEA", "egress internet"),
        ("Network Ingress from Internet", "ingress"),
        # AWS's usage types
        ("USE1-EUW1-AWS-Out-Bytes", "egress inter_continent"),
        ("USE1-USW2-AWS-Out-Bytes", "egress inter_region"),
        ("USE1-APS2-AWS-Out-Bytes", "egress oceania"),
        ("EUC1-APN1-AWS-Out-Bytes", "egress inter_continent"),
        ("USE1-DataTransfer-Regional-Bytes", "egress inter_zone"),
        ("USE1-DataTransfer-Out-Bytes", "egress internet"),
        ("USE1-DataTransfer-In-Bytes", "ingress"),
        ("EBS:VolumeUsage.gp3", "disk"),
        ("SpotUsage:g4dn.2xlarge", "vm"),
        # Azure's meters
        ("Inter-Region Data Transfer Out", "egress inter_region"),
        ("Intra Continent Data Transfer Out", "egress inter_region"),
        ("Inter Continent Data Transfer Out - NAM or EU To Any", "egress inter_continent"),
        ("Standard Data Transfer Out", "egress internet"),
        # nothing to tell it by
        ("Data Transfer", UNCLASSED),
    ],
)
def test_service_of_a_charge(words: str, service: str):
    row = {"servicecategory": "Compute", "chargecategory": "Usage", "skumeter": words}
    assert service_of(BillRow("", row)) == service


@pytest.mark.parametrize(
    ("row", "service"),
    [
        ({"servicecategory": "Storage", "skumeter": "Download Egress"}, "data"),
        ({"servicecategory": "Storage", "skumeter": "Standard Storage"}, "storage"),
        ({"servicecategory": "Databases", "servicename": "Cloud SQL"}, "Cloud SQL"),
        ({"servicecategory": "Compute", "chargecategory": "Tax"}, "tax"),
        ({"servicecategory": "Compute", "chargecategory": "Credit", "skumeter": "egress"}, "credit"),
        ({"servicecategory": "Compute", "skumeter": "Core", "resourcename": "orch-controller"}, "controller"),
        (
            {"servicecategory": "Compute", "skumeter": "Core of egress-test", "resourcename": "egress-test"},
            "vm",
        ),
        (
            {"servicecategory": "Networking", "skumeter": "Data transfer", "xlinkclass": "oceania"},
            "egress oceania",
        ),
    ],
)
def test_service_by_other_columns(row: dict[str, str], service: str):
    assert service_of(BillRow("", {"chargecategory": "Usage", **row})) == service
