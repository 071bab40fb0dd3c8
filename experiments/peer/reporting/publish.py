"""Publishes this peer's signed epoch and evaluation records in the DHT without blocking training.

Order of calls in a peer: `use_record_key(path)` right after the fork, then `hivemind.DHT`, `Publisher`,
`hivemind.Optimizer`. Hivemind signs its progress reports with its process-wide key. With the record key as that key,
the monitor can match each progress report to a peer of the roster.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.wire.dht_records import (
    EPOCHS_FIELD,
    EVALUATIONS_FIELD,
    EXPIRATION_S,
    KEEP_EPOCHS,
    EpochReport,
    Evaluation,
    OrchSchema,
    RecordError,
    decode_epochs,
    decode_evaluations,
    encode_epochs,
    encode_evaluations,
    subkey_of,
)
from metrics.records import EgressRecord, EpochRecord, IngressRecord

_log = logging.getLogger(__name__)

_STORE_TIMEOUT_S = 15.0
_RETRY_S = 0.5
_REFRESH_S = 20.0  # period of re-storing: replicas are lost with their VMs, and split swarms reconnect
# Hivemind's pipe to its DHT process is not locked: above 16 KiB Python writes in two parts, and the requests of two
# threads could mix. The oldest epochs of a value are dropped before that.
_SOFT_LIMIT_BYTES = 12 * 1024


class PublishError(Exception):
    """The record key cannot be used."""


def use_record_key(path: Path) -> Any:
    """Make the key in `path` (PEM) Hivemind's process-wide key and return it (a Hivemind RSAPrivateKey).

    Call it after the fork, before DHT and Optimizer. Repeated calls with the same key have no effect. Raises
    PublishError if the file is not an RSA key, or if Hivemind has already created another key in this process.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from hivemind.utils.crypto import RSAPrivateKey

    try:
        loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise PublishError(
            f"{path}: cannot read the record key: {error}; the controller writes it"
        ) from error
    if not isinstance(loaded, rsa.RSAPrivateKey):
        raise PublishError(
            f"{path}: not an RSA key; create it with experiments.wire.record_keys.generate_record_key"
        )
    key = RSAPrivateKey.__new__(RSAPrivateKey)
    key._private_key = loaded
    present = RSAPrivateKey._process_wide_key
    if present is None:
        RSAPrivateKey._process_wide_key = key
    elif present.to_bytes() != key.to_bytes():
        raise PublishError(
            f"{path}: Hivemind already uses another key; call use_record_key before DHT and Optimizer"
        )
    return key


@dataclass
class _Field:
    """The value to publish under one DHT field, and the version the DHT has accepted."""

    value: dict[str, Any] | None = None
    version: int = 0
    accepted: int = 0
    next_try: float = 0.0
    failures: int = 0
    rows: list[Any] = field(default_factory=list)


class Publisher:
    """Stores this peer's latest records under its signed subkey, in a thread that retries until they are accepted."""

    def __init__(
        self,
        dht: Any,
        run_key: str,
        vm: str,
        slot: str,
        generation: int,
        record_key_path: Path,
        *,
        keep: int = KEEP_EPOCHS,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """Add validators to `dht` and start a daemon thread. Raises PublishError, and RecordError for the VM's name.

        `keep`: number of epochs readable at a time, at most MAX_EPOCHS.
        """
        from hivemind.dht.crypto import RSASignatureValidator
        from hivemind.dht.schema import SchemaValidator

        key = use_record_key(record_key_path)
        self._subkey = subkey_of(vm, key.get_public_key().to_bytes().decode())
        dht.add_validators([SchemaValidator(OrchSchema, prefix=run_key), RSASignatureValidator(key)])
        self._dht, self._run_key = dht, run_key
        self._vm, self._slot, self._generation = vm, slot, generation
        self._unix_time, self._keep = unix_time, keep
        self._sequence = int(unix_time() * 1000)  # so that it increases across restarts of this program
        self._fields = {EPOCHS_FIELD: _Field(), EVALUATIONS_FIELD: _Field()}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    @property
    def subkey(self) -> bytes:
        """The only subkey this VM may write."""
        return self._subkey

    @property
    def warnings(self) -> list[str]:
        """Values the DHT has repeatedly not accepted, one sentence each."""
        with self._changed:
            return [
                f"publish: the DHT did not accept {name} {entry.failures} times in a row"
                for name, entry in self._fields.items()
                if entry.failures >= 3
            ]

    def epoch(self, epoch: EpochRecord, egress: Sequence[EgressRecord], ingress: IngressRecord) -> None:
        """Queue one epoch and return at once. Raises RecordError if a reader would refuse it."""
        report = EpochReport(epoch, tuple(egress), ingress)
        self._check(encode_epochs(self._slot, self._generation, 0, [report]), decode_epochs)
        self._put(EPOCHS_FIELD, report, encode_epochs)

    def evaluation(self, epoch: int, figures: Mapping[str, float], samples: int) -> None:
        """Queue one evaluation and return at once. Raises RecordError if a reader would refuse it.

        `figures`: "accuracy" (0 to 1), "loss" and others by name; those that are missing are unknown.
        """
        others = {name: value for name, value in figures.items() if name not in ("accuracy", "loss")}
        row = Evaluation(
            self._vm,
            epoch,
            self._unix_time(),
            figures.get("accuracy"),
            figures.get("loss"),
            samples,
            others,
        )
        self._check(encode_evaluations(self._slot, self._generation, 0, [row]), decode_evaluations)
        self._put(EVALUATIONS_FIELD, row, encode_evaluations)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the DHT has accepted everything published. Returns False on timeout."""
        with self._changed:
            for entry in self._fields.values():
                if entry.accepted < entry.version:
                    entry.next_try = 0.0
            self._changed.notify_all()
            accepted = self._changed.wait_for(
                lambda: all(entry.accepted >= entry.version for entry in self._fields.values()), timeout_s
            )
        if not accepted:
            _log.warning("the DHT did not accept the last record within %.1f s", timeout_s)
        return accepted

    def close(self) -> None:
        """End the thread and abandon a running store. Call `flush` first."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=1.0)

    def _check(self, value: dict[str, Any], decode: Callable[..., Any]) -> None:
        decode(value, self._vm, self._slot, self._generation, self._unix_time())
        if _size(value) > _SOFT_LIMIT_BYTES:
            raise RecordError(
                "size", f"a record of {_size(value)} bytes; at most {_SOFT_LIMIT_BYTES} are allowed"
            )

    def _put(self, name: str, row: Any, encode: Callable[..., dict[str, Any]]) -> None:
        with self._changed:
            entry = self._fields[name]
            entry.rows = [*entry.rows, row][-self._keep :]
            self._sequence += 1
            entry.value = encode(self._slot, self._generation, self._sequence, entry.rows)
            while _size(entry.value) > _SOFT_LIMIT_BYTES:
                entry.rows = entry.rows[1:]
                entry.value = encode(self._slot, self._generation, self._sequence, entry.rows)
            entry.version, entry.next_try, entry.failures = entry.version + 1, 0.0, 0
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [(n, e) for n, e in self._fields.items() if e.value is not None]
                name, entry = min(due, key=lambda item: item[1].next_try, default=(None, None))
                if self._closed:
                    return
                if name is None or entry is None or entry.next_try > now:
                    self._changed.wait(_REFRESH_S if entry is None else entry.next_try - now)
                    continue
                value, version = entry.value, entry.version
            stored = self._store(name, value)
            with self._changed:
                if stored:
                    entry.accepted, entry.failures = max(entry.accepted, version), 0
                    wait_s = _REFRESH_S
                else:
                    entry.failures += 1
                    wait_s = min(_RETRY_S * 2**entry.failures, 5.0)
                if entry.version == version:
                    entry.next_try = time.monotonic() + wait_s
                self._changed.notify_all()

    def _store(self, name: str, value: dict[str, Any] | None) -> bool:
        work = partial(_store_on_replicas, f"{self._run_key}_{name}", self._subkey, value)
        try:
            return bool(self._dht.run_coroutine(work, return_future=True).result(timeout=_STORE_TIMEOUT_S))
        except FutureTimeoutError:
            _log.warning("the DHT did not answer a store of %s in %.0f s", name, _STORE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - the DHT's process returns any error; the store is retried
            _log.warning("cannot store %s in the DHT: %r", name, error)
        return False


async def _store_on_replicas(key: str, subkey: bytes, value: Any, _dht: Any, node: Any) -> bool:
    """Sign a record and store it here and on the nodes nearest the key. Runs in the DHT's process.

    Returns True if another node accepted it, or if all nodes responded with a refusal, so that a retry would change
    nothing. `DHTNode.store` returns the result of the last replica instead: a single node that refuses valid records
    (it may hold a forged one that expires later) would make every store look failed.
    """
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import DHTRecord
    from hivemind.utils import MSGPackSerializer, get_dht_time

    key_id, expiration = DHTID.generate(source=key), get_dht_time() + EXPIRATION_S
    record = DHTRecord(
        key_id.to_bytes(), MSGPackSerializer.dumps(subkey), MSGPackSerializer.dumps(value), expiration
    )
    signed = node.protocol.record_validator.sign_value(record)
    here: bool = node.protocol.storage.store(key_id, signed, expiration, subkey=subkey)
    found = await node.find_nearest_nodes([key_id], k_nearest=node.num_replicas, exclude_self=True)
    answers = await asyncio.gather(
        *(
            node.protocol.call_store(peer, [key_id], [signed], expiration, subkeys=[subkey])
            for peer in found[key_id].values()
        )
    )
    return any(answer and answer[0] for answer in answers) or (here and None not in answers)


def _size(value: dict[str, Any]) -> int:
    from hivemind.utils import MSGPackSerializer

    return len(MSGPackSerializer.dumps(value))
