"""Open a target's input: its pipeline, its shards in a store, and how to read them.

What has no store of its own gets an embedded one (Swift) for as long as it is open, with generated samples.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.errors import UsageError
from orchestrator.first_steps.trial import as_on_a_peer, copied_code, lone_config
from orchestrator.launch.store_client import client_options, store_keys
from orchestrator.pipeline.failures import input_errors
from orchestrator.pipeline.target import Standalone, Target

if TYPE_CHECKING:
    from cloud.storage.link import Link
    from cloud.storage.opener import ShardOpener
    from experiments.peer.config import PeerConfig
    from experiments.peer.training.task import TaskRunner
    from experiments.pipeline.pipeline import Item, Pipeline
    from experiments.tasks.protocol import Batch
    from orchestrator.launch.task_code import TaskCode

_BUCKET_URL = "s3://orch-pipeline"
BATCH_SAMPLES = 32  # of a pipeline without an experiment
_SHARDS = 8  # at least, of generated samples: streams read several at once


@dataclass(frozen=True)
class Trained:
    """What the experiment trains, and the config of a peer that trains it alone."""

    runner: TaskRunner
    config: PeerConfig


@dataclass(frozen=True)
class OpenInput:
    """A target's input. `client` is that of its store; `shards` are its training shards there."""

    name: str
    pipeline: Pipeline  # of training samples; with data.stored, what is left of it
    collate: Callable[[Sequence[Item]], Batch]
    batch_size: int
    seed: int
    shards: tuple[str, ...]
    endpoint: str
    client: Callable[[], Any]
    opener: ShardOpener
    generated: bool  # the samples were made here
    location: str  # of the experiment's store; "" for a pipeline alone
    spec: ExperimentSpec | None
    folder: Path  # temporary, removed at the end
    own_paths: Callable[[str], str] = str  # replaces paths of copies by the user's own, in messages
    trained: Trained | None = None  # None: a pipeline alone


@contextlib.contextmanager
def open_input(
    target: Target,
    *,
    samples: int = 512,
    link: Link | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[OpenInput]:
    """Open the target's input. `samples`: as many at least are generated, if the target has no store of its own.

    `link`: read the store as over this path. `progress` gets a line of text before what takes long. The code of a user's
    task is importable while the input is open. Raises UsageError, PipelineError, InputError, StorageError,
    DataSourceError.
    """
    say = progress or (lambda _: None)
    with tempfile.TemporaryDirectory(prefix="orch-pipeline-") as made:
        folder = Path(made).resolve()
        if target.standalone is not None:
            with _standalone(target.name, target.standalone, folder, samples, link, say) as found:
                yield found
        else:
            assert target.spec is not None
            with _experiment(target.spec, folder, samples, link, say) as found:
                yield found


@contextlib.contextmanager
def _standalone(
    name: str,
    standalone: Standalone,
    folder: Path,
    samples: int,
    link: Link | None,
    say: Callable[[str], None],
) -> Iterator[OpenInput]:
    from experiments.pipeline.load import load_pipeline

    pipeline = load_pipeline(name, standalone.settings)
    with _embedded_store() as (endpoint, keys):
        say(f"making {samples} samples of {standalone.dataset}")
        shards = _make(standalone.dataset, samples, 0, endpoint, keys, folder, standalone.data_options)
        client, opener = _reading(endpoint, keys, link)
        yield OpenInput(
            name=name,
            pipeline=pipeline,
            collate=stacked,
            batch_size=BATCH_SAMPLES,
            seed=0,
            shards=shards,
            endpoint=endpoint,
            client=client,
            opener=opener,
            generated=True,
            location="",
            spec=None,
            folder=folder,
        )


@contextlib.contextmanager
def _experiment(
    spec: ExperimentSpec, folder: Path, samples: int, link: Link | None, say: Callable[[str], None]
) -> Iterator[OpenInput]:
    code = copied_code(spec, folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(as_on_a_peer(spec, folder))
        from experiments.peer.training.stored_settings import with_stored_files
        from experiments.peer.training.task import build_runner
        from experiments.peer.training.task_data import use_stored_values

        generated = not spec.data.endpoint
        if generated:
            if spec.data.stored:
                raise UsageError(
                    f"{spec.name}: data.stored: the embedded store of this command has no stored values; set data.endpoint, "
                    "or --set data.stored=false"
                )
            endpoint, keys = stack.enter_context(_embedded_store())
            say(f"making {samples} samples of {spec.data.dataset}")
            shards = _make(spec.data.dataset, samples, spec.seed, endpoint, keys, folder)
        else:
            endpoint, keys = spec.data.endpoint, client_options(spec, store_keys(spec, os.environ))
            shards = shard_urls(spec.data.shards)
        client, opener = _reading(endpoint, keys, link)
        config = with_stored_files(
            lone_config(spec, code, folder, spec.swarm.batch_size), folder, opener.open
        )
        with input_errors(_own_paths(code, folder)):
            runner = build_runner(config)
            use_stored_values(config, runner, opener.open)
        yield OpenInput(
            name=spec.name,
            pipeline=runner.pipeline,
            collate=runner.collate_to_send,
            batch_size=spec.swarm.batch_size,
            seed=spec.seed,
            shards=tuple(shards),
            endpoint=endpoint,
            client=client,
            opener=opener,
            generated=generated,
            location=spec.data.location,
            spec=spec,
            folder=folder,
            own_paths=_own_paths(code, folder),
            trained=Trained(runner, config),
        )


def _own_paths(code: TaskCode | None, folder: Path) -> Callable[[str], str]:
    return str if code is None else lambda text: code.with_own_paths(text, folder)


@contextlib.contextmanager
def declared_pipeline(target: Target) -> Iterator[tuple[Pipeline, Callable[[str], str]]]:
    """The target's whole pipeline, without a store and samples, and `OpenInput.own_paths`.

    With data.stored too, it is the pipeline that starts at the original samples. Raises as `open_input` does.
    """
    from experiments.pipeline.load import load_pipeline

    if target.standalone is not None:
        yield load_pipeline(target.name, target.standalone.settings), str
        return
    assert target.spec is not None
    spec = target.spec
    with tempfile.TemporaryDirectory(prefix="orch-pipeline-") as made:
        folder = Path(made).resolve()
        code = copied_code(spec, folder)
        with as_on_a_peer(spec, folder), input_errors(_own_paths(code, folder)):
            from experiments.peer.training.stored_settings import with_stored_files
            from experiments.peer.training.task import build_runner

            config = lone_config(spec, code, folder, spec.swarm.batch_size)
            if spec.data.endpoint:
                _, opener = _reading(
                    spec.data.endpoint, client_options(spec, store_keys(spec, os.environ)), None
                )
                config = with_stored_files(config, folder, opener.open)
            yield build_runner(config).pipeline, _own_paths(code, folder)


def stacked(items: Sequence[Item]) -> Batch:
    """Collate items as a task would: arrays of one shape are stacked into a tensor, others stay a list of tensors."""
    import numpy as np
    import torch

    batch: dict[str, Any] = {}
    for name in items[0]:
        values = [np.asarray(item[name]) for item in items]
        same = len({(value.shape, value.dtype) for value in values}) == 1
        batch[name] = torch.from_numpy(np.stack(values)) if same else [torch.from_numpy(v) for v in values]
    return batch


@contextlib.contextmanager
def _embedded_store() -> Iterator[tuple[str, dict[str, Any]]]:
    """A store that is removed afterwards; yields its endpoint and the options of a client."""
    from cloud.storage.swift import SwiftServer
    from cloud.storage.swift_config import REGION
    from cloud.storage.swift_environment import state_folder

    state_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-store-", dir=state_folder()) as folder,
        SwiftServer(Path(folder)) as server,
    ):
        keys = {"access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key}
        yield server.endpoint, {"region": REGION, **keys}


def _make(
    dataset: str,
    samples: int,
    seed: int,
    endpoint: str,
    options: dict[str, Any],
    folder: Path,
    data_options: Any = (),
) -> tuple[str, ...]:
    """Store `samples` training samples (pages and stdlib: all they have, if fewer) in shards; returns the shards."""
    from cloud.datasets.generate import SIZES, generate
    from cloud.storage.client import make_client
    from cloud.storage.digits import make_digits
    from cloud.storage.publish import publish
    from cloud.storage.shards import HELDOUT, TRAIN

    client = make_client(endpoint, **options)
    made = folder / "made"
    made.mkdir()
    usual = 256 if dataset == "digits" else SIZES[dataset].samples_per_shard
    each = max(1, min(usual, samples // _SHARDS))
    if dataset == "digits":
        digits = make_digits(
            -(-samples // each), _BUCKET_URL, client, folder=made, samples_per_shard=each, seed=seed
        )
        return tuple(f"{_BUCKET_URL}/{name}" for name in digits.train)
    data = generate(dataset, samples, 1, seed=seed, **dict(data_options))
    left = {TRAIN: samples, HELDOUT: 1}

    def first() -> Iterator[Any]:
        for record in data.records:  # pages and stdlib have more
            if left[record.split] > 0:
                left[record.split] -= 1
                yield record
            elif not any(left.values()):
                return

    index = publish(first(), _BUCKET_URL, client, folder=made, made=data.made, max_samples=each)
    return tuple(f"{_BUCKET_URL}/{shard.name}" for shard in index.of(TRAIN))


def _reading(
    endpoint: str, options: dict[str, Any], link: Link | None
) -> tuple[Callable[[], Any], ShardOpener]:
    from cloud.storage.client import ClientPerProcess
    from cloud.storage.link import linked
    from cloud.storage.opener import ShardOpener

    client = ClientPerProcess(endpoint, **options)
    return client, ShardOpener(client if link is None else linked(client, link), endpoint=endpoint)
