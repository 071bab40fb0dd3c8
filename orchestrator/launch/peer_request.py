"""Launch requests for the peers and the monitor, with their complete configs."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from analysis.planning.checkpoints import checkpoint_bytes
from cloud.local.host.vms import NOTICE_FILE, vm_folder
from cloud.provider import LaunchRequest, Offer
from cloud.sky.vm.bootstrap import PEERS_VARIABLE
from cloud.targets import target_of
from cloud.vendors import AWS, RENTABLE
from experiments.averaging.methods import METHOD_KEYS
from experiments.averaging.records import region_of
from experiments.averaging.round_limits import averaging_timeout_s
from experiments.catalog import step_time
from experiments.emulation.accelerators import HOST
from experiments.emulation.bytes_scale import chunk_timeout_s
from experiments.parse.load import from_document
from experiments.peer.config import PeerConfig
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from experiments.schema.slots import slots
from experiments.wire.orders import ORDERS_FILE
from metrics.store.database import RunStore
from metrics.store.meta import EmulationMeta, RunMeta
from orchestrator.core.events import MONITOR, RequestVm
from orchestrator.core.state import Place
from orchestrator.launch.checkpoint_config import checkpoint_config
from orchestrator.launch.keys import run_key, vm_keys
from orchestrator.launch.own_paths import OwnPaths
from orchestrator.launch.rent_checks import aws_buckets, aws_written
from orchestrator.launch.rented import BARRIER_S, labels_of, store_node
from orchestrator.launch.run_spec import compile_within_s
from orchestrator.launch.task_code import CODE, WHEELS, TaskCall, copied_paths

_PEER = "experiments.peer.main:main"
_MONITOR = "experiments.monitor.main:main"
_MIN_PART_BYTES = 4096  # smaller parts are mostly headers
_T = TypeVar("_T")


class RunRequests:
    """Creates the launch requests of one run from its meta and its emulated cloud."""

    def __init__(
        self,
        folder: Path,
        store: RunStore,
        data_position: Callable[[str], Mapping[str, Any] | None] = lambda slot: None,
        epoch_positions: Callable[[str], Mapping[str, Any] | None] = lambda slot: None,
    ) -> None:
        """`data_position`: where a slot's last peer was in the data; None: unknown, or it had none. `epoch_positions`: where
        the slot's peers were at the ends of epochs; None: unknown.
        """
        self._folder, self._data_position, self._epoch_positions = folder, data_position, epoch_positions
        self._meta = store.run_meta()
        self._spec = from_document(self._meta.document)
        self.last_epoch = self._spec.measure.warmup_epochs + self._spec.measure.epochs
        self.evaluates = self._spec.data.heldout is not None
        self.checkpoints = self._spec.checkpoint is not None
        # A task may also store buffers and files of its own.
        self.most_checkpoint_bytes = 4 * (checkpoint_bytes(self._spec) or 2**40) + 2**30
        # emulated peers share this machine's environment, in which nothing is installed
        names = (CODE, WHEELS) if target_of(self._meta.target).rents else (CODE,)
        shipped = (folder.absolute() / name for name in names)
        self._folders = {path.name: str(path) for path in shipped if path.is_dir()}
        task = self._spec.task
        self._requirements = () if task is None else TaskCall.of(self._spec, task).requirements
        self.own_paths = OwnPaths.of_run(copied_paths(self._spec), folder)

    def peer(self, request: RequestVm, place: Place) -> LaunchRequest:
        """The launch request for a slot's VM and its peer."""
        keys = vm_keys(self._folder, request.vm)
        orders = (self._folder / "monitor" / ORDERS_FILE).read_bytes()
        config = replace(
            peer_config(self._meta, request, place, *self._data()),
            orders_public_key=run_key(self._folder)[1],
            orders=base64.b64encode(orders).decode(),
            data_position=self._data_position(request.slot),
            epoch_positions=self._epoch_positions(request.slot),
            notice_url=(vm_folder(self._folder.absolute(), request.vm) / NOTICE_FILE).as_uri(),
        )
        launch = LaunchRequest(
            vm=request.vm,
            offer=_offer(place),
            program=_PEER,
            config=config.to_json(),
            files={"identity.key": keys.identity, "record.key": keys.record},
            max_usd_per_h=place.max_usd_per_h,
            folders=self._folders,
            requirements=self._requirements,
        )
        return self._rented(launch, request, place) if target_of(self._meta.target).rents else launch

    def _rented(self, launch: LaunchRequest, request: RequestVm, place: Place) -> LaunchRequest:
        """Add what a rented VM needs: labels, an open port, software, a maximum lifetime."""
        slot = next(s for s in slots(self._spec) if s.name == request.slot)
        resources = next(r for r in slot.places if r.infra == place.location and r.use_spot == place.use_spot)
        cloud = place.location.partition("/")[0]
        return replace(
            launch,
            config={
                **launch.config,
                "announce_address": "env:ORCH_PUBLIC_ADDRESS",
                "initial_peers": [f"env:{PEERS_VARIABLE}"],
                "notice_url": cloud if place.use_spot and RENTABLE[cloud].notices else "",
                "barrier_timeout_s": BARRIER_S + compile_within_s(self._spec),
            },
            labels=labels_of(self._meta, request.slot, time.time()),
            ports=(int(launch.config["listen_port"]),),
            max_life_s=self._meta.max_life_s,
            network_tuning=self._spec.network_tuning,
            setup=self._spec.setup,
            file_mounts=dict(self._spec.file_mounts),
            buckets=aws_buckets(self._spec) if AWS.has(place.location) else (),
            written=aws_written(self._spec) if AWS.has(place.location) else (),
            disk_gb=resources.disk_size,
            image_id=resources.image_id or "",
        )

    def monitor(self, vm: str) -> LaunchRequest:
        """The launch request for the monitor, located at the first place of the first slot."""
        c = _known(self._meta.emulation, "emulation").time_scale
        place = slots(self._spec)[0].places[0]
        return LaunchRequest(
            vm=vm,
            offer=Offer(place.infra, "monitor", "CPU:1", False, None, "the monitor is not billed"),
            program=_MONITOR,
            config={
                "run_key": self._meta.run_id,
                "listen_address": "",
                "target_batch_size": self._meta.raw_target_batch_size,
                "period_s": 1.0,
                "dht_timeout_s": 10.0 / c,
                "orders_public_key": run_key(self._folder)[1],
            },
            # all monitors share one identity, which the peers know from the start
            files={"identity.key": vm_keys(self._folder, MONITOR).identity},
        )

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Address and location of the nodes that are not peers' VMs (the store, the monitor)."""
        if target_of(self._meta.target).rents:
            return store_node(self._spec)
        try:
            host = json.loads((self._folder / "cloud" / "host.json").read_text())
        except (OSError, ValueError):  # being rewritten, or a provider without this file
            return {}
        found: dict[str, dict[str, Any]] = host.get("nodes") or {}
        places = {name: str(n.get("location") or "") for name, n in found.items()}
        if "store" in places:  # it may be emulated at another place, but it is billed at this one
            places["store"] = self._spec.data.location
        return {name: (str(n.get("ip") or ""), places[name]) for name, n in found.items()}

    def _data(self) -> tuple[str, dict[str, str]]:
        """The store's endpoint as seen by the peers, and the peers' environment."""
        environment = dict(self._spec.envs)
        path = self._folder / "keys" / "environment.key"
        if path.is_file():
            environment |= json.loads(path.read_text())
        endpoint = self._spec.data.endpoint
        try:
            store = json.loads((self._folder / "cloud" / "store" / "store.json").read_text())
        except FileNotFoundError:
            return endpoint, environment
        if store.get("access_key"):
            environment |= {
                "AWS_ACCESS_KEY_ID": store["access_key"],
                "AWS_SECRET_ACCESS_KEY": store["secret_key"],
            }
        return str(store.get("endpoint") or endpoint), environment


def peer_config(
    meta: RunMeta, request: RequestVm, place: Place, endpoint: str, environment: Mapping[str, str]
) -> PeerConfig:
    """The complete config of a peer.

    Times are divided by time_scale; sizes come from the emulation plan. Only steps of emulated accelerators
    are padded. Timeouts follow docs/emulated-cloud.md: the request timeout is shorter than matchmaking, the
    chunk timeout is long compared with the slowest part, and the DHT timeout allows for bulk data on the same
    connection.
    """
    spec = from_document(meta.document)
    emulation = _known(meta.emulation, "emulation")
    on_host = emulation.accelerators == HOST
    emulated = bool(meta.emulated) and not on_host
    c = emulation.time_scale
    times = step_time(spec.timed_as, place.accelerator, plain=spec.swarm.plain) if emulated else None
    if emulated and times is None:
        raise ValueError(f"no step time is known for {spec.timed_as} on {place.accelerator}")
    batch, swarm = spec.swarm.batch_size, spec.swarm
    task = None if spec.task is None else TaskCall.of(spec, spec.task)
    matchmaking_s = swarm.matchmaking_time_s / c
    padded = times if times and times.padded else None
    return PeerConfig(
        run_id=str(meta.run_id),
        vm=request.vm,
        slot=request.slot,
        generation=request.generation,
        listen_address="",
        listen_port=_port(spec, request),
        initial_peers=request.initial_peers,
        expected_peers=spec.peer_count,
        barrier_timeout_s=60.0 + 10.0 * spec.peer_count + compile_within_s(spec),
        target_batch_size=_known(emulation.raw_target_batch_size, "raw_target_batch_size"),
        batch_size=batch,
        coalesce=emulation.steps_per_report(place.accelerator),
        max_epochs=spec.measure.warmup_epochs + spec.measure.epochs,
        optimizer=swarm.optimizer.as_mapping(),
        schedule={} if swarm.schedule is None else swarm.schedule.as_mapping(spec.measure.all_epochs),
        clip_norm=swarm.clip_norm,
        precision=swarm.precision,
        gradient_checkpointing=swarm.gradient_checkpointing,
        compile=swarm.compile,
        matchmaking_time_s=matchmaking_s,
        averaging_timeout_s=_averaging_timeout_s(
            swarm.averaging_timeout_s / c, emulation, emulated, matchmaking_s
        ),
        next_chunk_timeout_s=chunk_timeout_s(c),
        request_timeout_s=min(3.0 / c, 0.6 * matchmaking_s),
        dht_timeout_s=10.0 / c,
        part_size_bytes=max(_MIN_PART_BYTES, _known(emulation.part_size_bytes, "part_size_bytes")),
        model=spec.trains,
        emulated=emulated,
        parameters=_known(emulation.parameters, "parameters"),
        matrices=tuple((int(rows), int(columns)) for rows, columns in emulation.matrices),
        forward_s=padded.forward_s(batch) / c if padded else 0.0,
        backward_s=padded.backward_s(batch) / c if padded else 0.0,
        sync_work_s=padded.sync_work_s / c if padded else 0.0,
        seed=spec.seed,
        endpoint=endpoint,
        region=spec.data.region,
        shards=shard_urls(spec.data.shards),
        heldout_shards=shard_urls(spec.data.heldout) if spec.data.heldout else (),
        cache_bytes=int(spec.data.cache_gb * 1e9),
        averaging_region=region_of(place.location),
        task=None if task is None else _task(task, spec),
        code_folder="" if task is None else CODE,
        pipeline="" if task is None else task.pipeline,
        workers=spec.data.workers.model_dump(),
        bad_samples=spec.data.bad_samples,
        stored=spec.data.stored,
        streams=spec.data.streams,
        trace=spec.data.trace,
        ranks=1 if emulated else int(place.accelerator.partition(":")[2]),
        evaluate_every_epochs=spec.data.evaluate_every_epochs or 0,
        threads=1 if on_host else 0,  # peers share this machine's cores
        checkpoint=checkpoint_config(meta, spec),
        own_machine=not target_of(meta.target).on_this_host,
        own_network=target_of(meta.target).emulates_distance,
        environment=environment,
        **{key: getattr(swarm, key) for key in METHOD_KEYS},
    )


def _task(task: TaskCall, spec: ExperimentSpec) -> dict[str, Any]:
    """The task in a peer's config."""
    facts = spec.task.facts if spec.task is not None else None
    return {"call": task.call, "with": dict(task.settings), "sha256": "" if facts is None else facts.sha256}


def _known(value: _T | None, key: str) -> _T:
    """Return a meta value that every launch writes. Raises ValueError if it is missing."""
    if value is None:
        raise ValueError(f"the run's meta lacks {key}")
    return value


def _averaging_timeout_s(
    longest_s: float, emulation: EmulationMeta, emulated: bool, matchmaking_s: float
) -> float:
    """Timeout of an averaging round: from its expected communication time if emulated, or else `longest_s`."""
    if not emulated:
        return longest_s
    chunk_s = chunk_timeout_s(emulation.time_scale)
    return averaging_timeout_s(longest_s, _known(emulation.comm_s, "comm_s"), matchmaking_s, chunk_s)


def _port(spec: ExperimentSpec, request: RequestVm) -> int:
    """A separate port per VM, below the ephemeral range, because VMs without namespaces may share an address."""
    names = [slot.name for slot in slots(spec)]
    return 31000 + (names.index(request.slot) % 30) * 50 + request.generation % 50


def _offer(place: Place) -> Offer:
    return Offer(
        location=place.location,
        instance=place.instance,
        accelerator=place.accelerator,
        use_spot=place.use_spot,
        usd_per_h=place.usd_per_h,
        price_source=place.price_source,
    )
