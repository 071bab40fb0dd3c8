"""LAMB, the paper's optimizer for large batches (You et al., 2020, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lamb(torch.optim.Optimizer):
    """Adam's direction scaled per tensor by ‖w‖ / ‖update‖, at most `clamp`; weight decay is decoupled."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clamp: float = 10.0,
    ) -> None:
        if lr <= 0.0:
            raise ValueError(f"lr {lr} must be above 0")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "clamp": clamp}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters from the `.grad` buffers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        state["step"] += 1
        count = float(state["step"])
        first.lerp_(parameter.grad, 1 - beta1)  # type: ignore[arg-type]
        second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)  # type: ignore[arg-type]
        denominator = (second / (1 - beta2**count)).sqrt_().add_(group["eps"])
        update = (first / (1 - beta1**count)).div_(denominator)
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        weight_norm, update_norm = float(parameter.norm()), float(update.norm())
        ratio = min(weight_norm / update_norm, group["clamp"]) if weight_norm > 0 and update_norm > 0 else 1.0
        parameter.add_(update, alpha=-group["lr"] * ratio)
