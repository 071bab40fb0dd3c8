"""Microsoft Azure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from cloud.vendors.notices import GRACE_S, Ask, Look, Notice, NoticeError, json_object
from cloud.vendors.record import CredentialFile, FocusNames, Vendor

_log = logging.getLogger(__name__)


def azure_notice(text: str, vm: str, now_s: float) -> Notice | None:
    """Return the first Preempt event that names the VM, or any Preempt event if `vm` is "". Raises NoticeError."""
    events = json_object(text).get("Events")
    if not isinstance(events, list):
        raise NoticeError(f"no scheduled events: {text[:80]!r}")
    for event in events:
        if not isinstance(event, dict):
            raise NoticeError(f"not a scheduled event: {event!r}"[:120])
        named = event.get("Resources")
        ours = not vm or not isinstance(named, list) or not named or vm in named
        if event.get("EventType") == "Preempt" and ours:
            return Notice(_time(event.get("NotBefore"), now_s), "Preempt")
    return None


def _time(not_before: object, now_s: float) -> float:
    """Parse NotBefore, which is empty once the event has started."""
    if not not_before:
        return now_s + GRACE_S
    try:
        return parsedate_to_datetime(str(not_before)).timestamp()
    except ValueError as error:
        raise NoticeError(f"not a time: {str(not_before)[:80]!r}") from error


def _notices(ask: Ask, unix_time: Callable[[], float]) -> Look:
    """Read scheduled events of type Preempt that name this VM."""
    flavor, vm = {"Metadata": "true"}, ""

    def look() -> Notice | None:
        nonlocal vm
        _, text = ask("/metadata/scheduledevents?api-version=2020-07-01", flavor)
        if '"Preempt"' in text and not vm:
            name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            try:
                vm = ask(name, flavor)[1].strip()
            except NoticeError as error:  # better to leave for another VM's event than not to leave
                _log.warning("cannot determine this VM's name on Azure: %s", error)
        return azure_notice(text, vm, unix_time())

    return look


AZURE = Vendor(
    name="azure",
    title="Azure",
    focus=FocusNames("Microsoft", "Virtual Machines", "Bandwidth", "Storage Accounts"),
    bill_words=("microsoft", "azure"),
    rents_vms=True,
    credential_files=(
        CredentialFile(
            ".azure/azureProfile.json",
            ('"subscriptions": [{', '"subscriptions":[{'),
            folder_variable="AZURE_CONFIG_DIR",
        ),
    ),
    sign_in="run `az login`",
    packages=("azure.identity",),
    api_url="https://management.azure.com/",
    skypilot_switch=True,
    cpu_instances=r"Standard_D[0-9]+s_v5$",
    instance_names={"NC4as_T4_v3": "Standard_NC4as_T4_v3"},
    address_command="""\
curl -sf -m 2 -H Metadata:true \\
        'http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress?api-version=2021-02-01&format=text'""",
    notices=_notices,
)
