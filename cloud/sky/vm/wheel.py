"""What a VM gets: orch's own wheel, pinned requirements and the program's config. No source tree, no token."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from cloud.provider import InvalidRequestError, LaunchRequest
from cloud.sky.vm.bootstrap import CHECK, MORE_REQUIREMENTS, run_script
from cloud.sky.vm.secrets import seal
from cloud.targets import SKY

# Packages that a peer may import; the controller is not among them.
_SHIPPED = ("cloud", "experiments", "metrics")
_SUFFIXES = {".py", ".csv", ".json", ".yaml", ".typed"}
_DIRECT = (
    "hivemind",
    "torch",
    "webdataset",
    "boto3",
    "cryptography",
    "numpy",
    "pillow",
    "scipy",
    "soundfile",
    "tokenizers",
    "transformers",
    "zstandard",
)
_GPU = "nvidia-ml-py"  # reads the utilisation of GPUs, which is unknown without it; pure Python, unlike NVIDIA's libraries
_AT = (1980, 1, 1, 0, 0, 0)


def build_wheel(home: Path, root: Path | None = None) -> Path:
    """Build orch's wheel without network or tools, once per content: `<home>/wheels/<hash>/orch-...whl`."""
    root = root or Path(__file__).resolve().parents[3]
    files = [(path.relative_to(root).as_posix(), path.read_bytes()) for path in _sources(root)]
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name} {len(data)}\n".encode() + data)
    number = _own_version()
    wheel = home / "wheels" / digest.hexdigest()[:16] / f"orch-{number}-py3-none-any.whl"
    if wheel.is_file():
        return wheel
    wheel.parent.mkdir(parents=True, exist_ok=True)
    info = f"orch-{number}.dist-info"
    files += [
        (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: orch\nVersion: {number}\n".encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: orch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files]
    files.append((f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()))
    # Concurrent launches, in processes and threads, may build it at the same time: each writes its own file.
    fd, fresh = tempfile.mkstemp(suffix=".new", dir=wheel.parent)
    os.close(fd)
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name, _AT), data, zipfile.ZIP_DEFLATED)
    os.replace(fresh, wheel)
    return wheel


def _sources(root: Path) -> Iterable[Path]:
    for package in _SHIPPED:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file() and "__pycache__" not in path.parts:
                yield path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _own_version() -> str:
    try:
        return version("orch")
    except PackageNotFoundError:
        return "0"


def requirements() -> str:
    """Return a peer's requirements.txt: its imports and all their dependencies, in the versions installed here.

    Local version labels ("+cpu") and NVIDIA's libraries are left out: the VM chooses the torch that fits. `nvidia-ml-py` is
    among them if it is installed here. Raises InvalidRequestError if one of the packages is not installed here.
    """
    pins: dict[str, str] = {}
    try:
        for name in _DIRECT:
            _pin(name, pins)
        if _is_installed(_GPU):
            pins[_GPU] = version(_GPU)
    except PackageNotFoundError as error:
        raise InvalidRequestError(
            f"{error.name} is not installed on this machine, whose package versions the VMs get; "
            f"install it with `{SKY.install}` in a clone of orch"
        ) from error
    return "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def _is_installed(name: str) -> bool:
    """Whether this environment has a distribution."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _pin(name: str, pins: dict[str, str]) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    key = canonicalize_name(name)
    if key in pins or key.startswith(("nvidia-", "cuda-", "triton")):
        return
    found = distribution(name)
    pins[key] = found.version.partition("+")[0]
    for line in found.requires or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            try:
                _pin(wanted.name, pins)
            except PackageNotFoundError:
                continue  # for another platform, or optional: resolved on the VM


def ship_folder(folder: Path, home: Path, request: LaunchRequest) -> tuple[Path, str]:
    """Create the folder that becomes `~/orch-vm` on the VM; returns it and the key of the sealed file.

    `config.json` contains no secret: the values of its environment, and `files`, are in `sealed`.
    """
    made = folder / f"{request.vm}.ship"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True, mode=0o700)
    wheel = build_wheel(home)
    shutil.copy(wheel, made / wheel.name)
    wanted = requirements()
    (made / "requirements.txt").write_text(wanted)
    (made / "check_versions.py").write_text(CHECK)
    config = dict(request.config)
    environment = {str(k): str(v) for k, v in dict(config.get("environment") or {}).items()}
    if "environment" in config:
        config["environment"] = dict.fromkeys(sorted(environment), "sealed")
    if config.get("listen_address") == "":
        config["listen_address"] = "0.0.0.0"
    (made / "config.json").write_text(json.dumps(config))
    key, sealed = seal(environment, request.files)
    (made / "sealed").write_bytes(sealed)
    (made / "sealed").chmod(0o600)
    for name, source in request.folders.items():
        shutil.copytree(source, made / name)
    if request.requirements:
        (made / MORE_REQUIREMENTS).write_text("".join(f"{line}\n" for line in request.requirements))
    (made / "setup.sh").write_text(request.setup or ":\n")
    (made / "run.sh").write_text(run_script(request, wheel.name, hashlib.sha256(wanted.encode()).hexdigest()))
    return made, key
