"""Checks that query the clouds: accepted credentials, quotas and this machine's clock offset. Read-only.

Used by `orch check --online` only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.utils import parsedate_to_datetime

from cloud.vendors import RENTABLE
from orchestrator.checks.findings import Finding

_TIMEOUT_S = 10.0
_CHECK_S = 120.0
_SKEW_S = 60.0  # the clouds reject signatures that are five minutes off
# Service Quotas' codes of EC2, in vCPUs: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html
_AWS_QUOTAS = {
    "L-3819A6DF": "spot, G and VT (T4, A10G)",
    "L-DB2E81BA": "on demand, G and VT (T4, A10G)",
    "L-34B43A08": "spot, standard (no GPU)",
    "L-1216C47A": "on demand, standard (no GPU)",
}
# SkyPilot's own check of a cloud, in a separate process because it prints and may hang.
_SKY_CHECK = """
import json, sys
from sky.clouds import cloud
from sky.utils import registry
for name in sys.argv[1:]:
    try:
        ok, reason = registry.CLOUD_REGISTRY.from_str(name).check_credentials(cloud.CloudCapability.COMPUTE)
    except Exception as error:
        ok, reason = False, f"{type(error).__name__}: {error}"
    print("\\n@" + json.dumps([name, bool(ok), str(reason or "")]), flush=True)
"""


def accepted(clouds: Sequence[str]) -> list[Finding]:
    """Run SkyPilot's own check of each cloud."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SKY_CHECK, *clouds],
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [_unanswered(cloud, f"no answer within {_CHECK_S:.0f} s") for cloud in clouds]
    answers = {
        name: (ok, " ".join(reason.split())[:300])
        for name, ok, reason in (
            json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")
        )
    }
    last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]
    found: list[Finding] = []
    for cloud in clouds:
        if cloud not in answers:
            found.append(_unanswered(cloud, last))
            continue
        ok, reason = answers[cloud]
        name = f"accepted {cloud}"
        found.append(
            Finding(name, "ok", "SkyPilot can rent there")
            if ok
            else Finding(
                name,
                "missing",
                reason or "SkyPilot cannot rent there",
                f"run `sky check {cloud}` for details",
            )
        )
    return found


def _unanswered(cloud: str, why: str) -> Finding:
    return Finding(
        f"accepted {cloud}", "unknown", f"SkyPilot's check gave no result: {why}", f"run `sky check {cloud}`"
    )


def clock(cloud: str) -> Finding:
    """Compare this machine's clock with the date in a response of the cloud."""
    vendor = RENTABLE[cloud]
    url = os.environ.get(vendor.api_url_variable) or vendor.api_url
    name = f"clock {cloud}"
    began_s = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT_S) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:  # an error response has a date, too
        date = error.headers.get("Date")
    except OSError as error:
        return Finding(name, "unknown", f"{url} does not respond ({error})", "check this machine's network")
    ended_s = time.time()
    try:
        theirs_s = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding(name, "unknown", f"the response of {url} has no date")
    skew_s = (began_s + ended_s) / 2 - theirs_s
    found = f"{skew_s:+.0f} s against {url}"
    if abs(skew_s) <= _SKEW_S:
        return Finding(name, "ok", found)
    return Finding(name, "missing", found, "set this machine's clock; otherwise signed requests are rejected")


def quotas() -> list[Finding]:
    """AWS vCPU quotas in the region that boto3 is configured for."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    region = boto3.Session().region_name or "us-east-1"
    quick = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"total_max_attempts": 2})
    found: list[Finding] = []
    for code, what in _AWS_QUOTAS.items():
        name = f"quota aws {region} {what}"
        try:
            client = boto3.client("service-quotas", region_name=region, config=quick)
            vcpus = float(client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"])
        except (BotoCoreError, ClientError, KeyError) as error:
            found.append(
                Finding(name, "unknown", f"not available: {error}", f"look up {code} in AWS Service Quotas")
            )
            continue
        text = f"{vcpus:.0f} vCPUs at a time"
        hint = f"request an increase of {code} in AWS Service Quotas"
        found.append(Finding(name, "ok", text) if vcpus else Finding(name, "warning", text, hint))
    return found
