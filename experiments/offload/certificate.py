"""The certificate of one run's server: made for it, signed by itself, and the only one that its peers accept."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from experiments.offload.errors import PlanError

_NAME = "orch-offload"
_VALID = timedelta(days=365)
_CLOCKS_DIFFER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str

    @classmethod
    def make(cls) -> Certificate:
        """Make one that is valid for a year. Needs the package cryptography; the server itself does not."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_DIFFER)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return cls(made.public_bytes(pem).decode(), private.decode())

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write certificate.pem and key.pem, which only this user may read; returns their paths. Raises OSError."""
        paths = folder / "certificate.pem", folder / "key.pem"
        for path, text in zip(paths, (self.certificate, self.key), strict=True):
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        return paths


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The server's side of TLS. Raises PlanError if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # also ssl.SSLError
        raise PlanError(
            f"the certificate {certificate} with the key {key} cannot be used ({error}); make both again"
        ) from error
    return context


def client_context(certificate: str) -> ssl.SSLContext:
    """The peer's side of TLS. The peer must still compare the certificate that is shown with this one (PEM), since one that
    it has signed is accepted here, too. Raises PlanError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned, whatever address its server has
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as error:
        raise PlanError(f"the server's certificate cannot be read ({error}); make it again") from error
    return context
