"""Builds the peer's hivemind.Optimizer from its config, with the settings of docs/hivemind.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import hivemind
import torch
from hivemind.compression import (
    CompressionBase,
    Float16Compression,
    NoCompression,
    RoleAdaptiveCompression,
)
from hivemind.optim.state_averager import initialize_optimizer_state_

from experiments.averaging import methods
from experiments.averaging.records import AveragingMethod, Compression, Setting
from experiments.peer.averaging.eight_bit import Blockwise8Bit, Uniform8Bit, use_eight_bit_formats
from experiments.peer.averaging.gradient_averager import RoundAverager
from experiments.peer.averaging.hierarchical import HierarchicalAverager
from experiments.peer.averaging.powersgd import PowerSgdAverager
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.optimizer.lamb import Lamb
from experiments.peer.optimizer.overlap import OverlappedOptimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.optimizer.update_rule import update_rule_of

_NEVER = 10**9
_FIRST_ATTEMPT = 0.7  # of the averaging timeout, for one all-reduce; the rest is for a retry
# Codecs, optimizers and averagers by their names in the records of `experiments.averaging`.
_CODECS: dict[str, Callable[[], CompressionBase]] = {
    "NoCompression": NoCompression,
    "Float16Compression": Float16Compression,
    "Uniform8Bit": Uniform8Bit,
    "Blockwise8Bit": Blockwise8Bit,
}
_SWARM_OPTIMIZERS: dict[str, type[SwarmOptimizer]] = {
    "SwarmOptimizer": SwarmOptimizer,
    "OverlappedOptimizer": OverlappedOptimizer,
}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "lamb": Lamb,
}


def method_of_config(config: PeerConfig) -> AveragingMethod:
    """Return the averaging method named in the config. Raises PeerConfigError."""
    try:
        method = methods.method_of(**{key: getattr(config, key) for key in methods.METHOD_KEYS})
    except methods.UnknownMethodError as error:
        raise PeerConfigError(str(error)) from error
    for (_, key), problem in method.problems(Setting()):
        raise PeerConfigError(f"{key}: {problem}")
    return method


def compression_of(name: str) -> CompressionBase:
    """Return Hivemind's compression by its name in the config; for PowerSGD, the compression of its factors.

    Raises PeerConfigError for an unknown name. Also makes this process use our classes for the 8-bit formats.
    """
    try:
        compression = methods.compression_of(name)
    except methods.UnknownMethodError as error:
        raise PeerConfigError(str(error)) from error
    use_eight_bit_formats()
    return _CODECS[compression.codec]()


def state_compression() -> CompressionBase:
    """Compression of the state that a joiner downloads: weights as float16 (2 bytes), optimizer statistics uncompressed
    (4 bytes).

    The mean squares of Adam and LAMB are those of gradients. Below 6e-8 float16 has only zero, and a step divided by the
    root of zero would throw the joiner's weights far away.
    """
    return RoleAdaptiveCompression(parameter=Float16Compression(), default=NoCompression())


def torch_optimizer_of(settings: Mapping[str, Any]) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """Return a torch optimizer factory for `{"name": ..., "lr": ..., ...}`. Raises PeerConfigError."""
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    name = str(options.pop("name", ""))
    if name not in _OPTIMIZERS:
        raise PeerConfigError(f"optimizer.name: {name!r} is not one of {', '.join(_OPTIMIZERS)}")
    factory = partial(_OPTIMIZERS[name], **options)
    try:
        factory([torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise PeerConfigError(f"optimizer: {name} does not take these settings: {error}") from error
    return factory


def with_state(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a factory whose optimizers have their statistics, as those of a downloaded state, but have moved no weight.

    Hivemind takes a step with zero gradients for that, in which weight decay moves the weights (with adam, whose penalty is
    part of the gradient, by the whole learning rate). Here that step's learning rate and weight decay are 0.
    """

    def made(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        before = [(group["lr"], group.get("weight_decay", 0.0)) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group.update(lr=0.0, weight_decay=0.0)
        initialize_optimizer_state_(optimizer)
        for group, (lr, weight_decay) in zip(optimizer.param_groups, before, strict=True):
            group.update(lr=lr, weight_decay=weight_decay)
        return optimizer

    return made


def _hierarchical(config: PeerConfig, _: Compression) -> Callable[..., RoundAverager]:
    return partial(HierarchicalAverager, region=config.averaging_region)


def _powersgd(config: PeerConfig, compression: Compression) -> Callable[..., RoundAverager]:
    assert compression.rank is not None
    return partial(PowerSgdAverager, rank=compression.rank, seed=config.seed)


_AVERAGERS: dict[str, Callable[[PeerConfig, Compression], Callable[..., RoundAverager]]] = {
    "RoundAverager": lambda config, compression: RoundAverager,
    "HierarchicalAverager": _hierarchical,
    "PowerSgdAverager": _powersgd,
}


def _averager_of(config: PeerConfig) -> Callable[..., RoundAverager]:
    method = method_of_config(config)
    return _AVERAGERS[method.averager](config, method.compression)


def _optimizer_of(config: PeerConfig) -> type[SwarmOptimizer]:
    return _SWARM_OPTIMIZERS[method_of_config(config).schedule.optimizer]


def build_optimizer(
    config: PeerConfig, dht: hivemind.DHT, parameters: Iterable[torch.nn.Parameter | dict[str, Any]]
) -> SwarmOptimizer:
    """Build the optimizer with the settings of docs/hivemind.md. Raises PeerConfigError for unknown names.

    `parameters`: parameters or groups of them, as torch.optim takes them.
    """
    method = method_of_config(config)
    timeout = config.averaging_timeout_s
    optimizer = _optimizer_of(config)(
        dht=dht,
        run_id=config.run_id,
        target_batch_size=config.target_batch_size,
        batch_size_per_step=config.samples_per_step,
        params=list(parameters),
        optimizer=with_state(torch_optimizer_of(config.optimizer)),
        matchmaking_time=config.matchmaking_time_s,
        averaging_timeout=timeout,
        allreduce_timeout=_FIRST_ATTEMPT * timeout,
        next_chunk_timeout=config.next_chunk_timeout_s,
        load_state_timeout=max(120.0, 2 * timeout),
        reuse_grad_buffers=True,
        offload_optimizer=False,
        delay_optimizer_step=False,
        delay_grad_averaging=False,
        delay_state_averaging=False,
        average_state_every=_NEVER,
        grad_compression=compression_of(config.compression),
        load_state_compression=state_compression(),
        # a factory, since hivemind.Optimizer passes on neither request_timeout nor part_size_bytes
        grad_averager_factory=partial(
            _averager_of(config),
            request_timeout=config.request_timeout_s,
            part_size_bytes=config.part_size_bytes,
            allow_state_sharing=False,  # a joiner needs the weights, not stale gradients
        ),
        averager_opts={
            "initialize_optimizer": False,
            "request_timeout": config.request_timeout_s,
            "ask_timeout_s": config.dht_timeout_s,
            # averages and factors (below) received as float16 are served as float16, without loss; others uncompressed
            "update_compression": _CODECS[method.compression.update_codec](),
        },
        # with the default refresh period of 3 s, peers would not see each other in a short first epoch and step alone
        tracker_opts={"default_refresh_period": 0.5, "max_refresh_period": 5.0, "metadata_expiration": 30.0},
        verbose=True,
        shutdown_timeout=2,
    )
    optimizer.sync_work_s = config.sync_work_s
    optimizer.state_averager.before_step = update_rule_of(config, optimizer.state_averager.optimizer).apply
    if isinstance(optimizer.grad_averager, PowerSgdAverager):
        optimizer.state_averager.rank = method.compression.rank
        optimizer.state_averager.last_factors = optimizer.grad_averager.factors
    return optimizer
