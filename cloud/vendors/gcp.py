"""Google Cloud."""

from __future__ import annotations

from collections.abc import Callable

from cloud.vendors.notices import GRACE_S, Ask, Look, Notice, NoticeError
from cloud.vendors.record import CredentialFile, FocusNames, Vendor

_ENDS = "TERMINATE_ON_HOST_MAINTENANCE"
# Accelerators that come with a VM family of their own; all others are attached to N1 VMs.
_HOSTS = {
    "A100": "a2-(highgpu|megagpu)-{n}g",
    "A100-80GB": "a2-ultragpu-{n}g",
    "H100": "a3-highgpu-{n}g",
    "H200": "a3-ultragpu-{n}g",
    "L4": "g2-standard-{cpus}",
}
_L4_CPUS = {1: "(4|8|12|16|32)", 2: "24", 4: "48", 8: "96"}


def _accelerator_host(accelerator: str, count: int) -> str:
    pattern = _HOSTS.get(accelerator, "n1-(standard|highmem)-[0-9]+")
    return pattern.format(n=count, cpus=_L4_CPUS.get(count, "none"))


def gcp_notice(preempted: str, maintenance: str, now_s: float) -> Notice | None:
    """Parse Google's two values: TRUE or FALSE, and NONE or the maintenance action. Raises NoticeError."""
    if preempted.strip().upper() not in ("TRUE", "FALSE"):
        raise NoticeError(f"instance/preempted is neither TRUE nor FALSE: {preempted[:80]!r}")
    if preempted.strip().upper() == "TRUE":
        return Notice(now_s + GRACE_S, "preempted")
    return Notice(now_s + GRACE_S, _ENDS) if maintenance.strip() == _ENDS else None


def _notices(ask: Ask, unix_time: Callable[[], float]) -> Look:
    """Read instance/preempted and instance/maintenance-event; Google gives no time."""
    base, flavor = "/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}

    def look() -> Notice | None:
        _, preempted = ask(f"{base}/preempted", flavor)
        _, maintenance = ask(f"{base}/maintenance-event", flavor, allowed=(404,))
        return gcp_notice(preempted, maintenance, unix_time())

    return look


GCP = Vendor(
    name="gcp",
    title="Google Cloud",
    focus=FocusNames("Google Cloud", "Compute Engine", "Networking", "Cloud Storage"),
    bill_words=("google", "gcp"),
    rents_vms=True,
    shares_network=True,
    credential_files=(
        CredentialFile(
            ".config/gcloud/application_default_credentials.json",
            variable="GOOGLE_APPLICATION_CREDENTIALS",
            folder_variable="CLOUDSDK_CONFIG",
        ),
    ),
    sign_in="run `gcloud auth application-default login`",
    packages=("googleapiclient",),
    api_url="https://compute.googleapis.com/",
    skypilot_switch=True,
    identity="service_account",  # SkyPilot accepts only its own
    cpu_instances=r"n[24]-standard-",
    accelerator_host=_accelerator_host,
    address_command="""\
curl -sf -m 2 -H Metadata-Flavor:Google \\
        http://169.254.169.254/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip""",
    notices=_notices,
)
