"""The VMs' own credentials, and IAM's authorization of their requests: unlike AWS, moto ignores conditions.

Only requests signed with a VM's key are checked, against the policies of its instance profile's role; all others are
allowed, as without this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from machines import Machine, Machines
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.exceptions import AccessDeniedError
from moto.iam.models import iam_backends
from moto.s3.exceptions import S3AccessDeniedError

_KEYS = ("aws:userid", "ec2:Attribute")
_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringLike": fnmatchcase,
    "StringEqualsIgnoreCase": lambda has, wanted: has.casefold() == wanted.casefold(),
}


def access_key(instance_id: str) -> str:
    """The access key that a VM's metadata service gives it."""
    return "ASIA" + instance_id[-16:].upper()


def role_of(machine: Machine) -> str:
    """Name of the role in the VM's instance profile; "" if there is none."""
    instance = machine.instance
    association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    roles = association.iam_instance_profile.roles if association else []
    return roles[0].name if roles else ""


def judge_vms(machines: Machines) -> None:
    """Allow or deny requests with a VM's credentials according to its role from now on."""

    def authorize(self: Any, _request: type, resource: str = "*") -> None:
        key = self.get_access_key()
        machine = next((m for i, m in machines.by_id.items() if access_key(i) == key), None)
        if machine is None:
            return
        service = self.service_name
        action = f"{service}:{self.data['Action'] if service == 's3' else self._get_action()}"
        attribute = _attribute(self.querystring) if action == "ec2:ModifyInstanceAttribute" else ""
        for each in _resources(self, resource):
            statements = _statements(self.current_account, role_of(machine))
            if not allowed(statements, action, each, machine.instance.id, attribute):
                print(f"denied {machine.instance.id} {action} on {each}", flush=True)
                if service == "s3":
                    raise S3AccessDeniedError()
                raise AccessDeniedError(user_arn=machine.instance.id, action=f"{action} on {each}")
        print(f"allowed {machine.instance.id} {action}", flush=True)

    ActionAuthenticatorMixin._authenticate_and_authorize_action = authorize  # type: ignore[method-assign]


def _resources(response: Any, resource: str) -> list[str]:
    """ARNs that a request names, or the resource that moto found if it names none."""
    named = [value for values in response.querystring.values() for value in values]
    ids = [str(v) for v in named if re.fullmatch(r"(i|sg)-[0-9a-f]+", str(v))]
    if response._get_action().startswith("Describe"):
        return ["*"]
    kinds = {"i": "instance", "sg": "security-group"}
    return [f"arn:aws:ec2:r:1:{kinds[i.split('-')[0]]}/{i}" for i in ids] or [resource]


def _statements(account: str, role: str) -> Iterable[dict[str, Any]]:
    backend = iam_backends[account]["aws"]
    found = next((r for r in backend.roles.values() if r.name == role), None)
    documents = list(found.policies.values()) if found else []
    for document in documents:
        yield from json.loads(document)["Statement"]


def _attribute(asked: Mapping[str, list[str]]) -> str:
    """The attribute that ModifyInstanceAttribute changes: given as "Attribute", or by the field with the value."""
    named = asked.get("Attribute") or [key.partition(".")[0] for key in asked if "." in key]
    return named[0] if named else ""


def allowed(
    statements: Iterable[dict[str, Any]], action: str, resource: str, instance_id: str, attribute: str = ""
) -> bool:
    """Whether a role with these statements allows the request. Raises KeyError for an unsupported condition."""
    context = {"aws:userid": f"AROAFAKE:{instance_id}"} | ({"ec2:Attribute": attribute} if attribute else {})
    effects = {
        each["Effect"]
        for each in statements
        if any(fnmatchcase(action, a) for a in _listed(each["Action"]))
        and any(fnmatchcase(resource, r) for r in _listed(each["Resource"]))
        and _holds(each.get("Condition", {}), resource, context)
    }
    return effects == {"Allow"}


def _holds(
    condition: dict[str, dict[str, str | list[str]]], resource: str, context: Mapping[str, str]
) -> bool:
    """Whether a statement's condition holds; a key that is missing in the request matches nothing."""
    asked = resource.rpartition("/")[2]
    for operator, pairs in condition.items():
        fits = _OPERATORS[operator]
        for key, wanted in pairs.items():
            values = [value.replace("${ec2:InstanceID}", asked) for value in _listed(wanted)]
            if key not in _KEYS:
                raise KeyError(key)
            if key not in context or not any(fits(context[key], value) for value in values):
                return False
    return True


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
