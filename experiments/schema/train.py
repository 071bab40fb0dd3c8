"""The section `train` of an experiment: when the training ends."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from experiments.schema import fields as f

_SECTION = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


class UntilMetric(BaseModel):
    """A value of a figure on held-out data (docs/tasks.md). Give either at_most or at_least."""

    model_config = _SECTION

    name: Annotated[str, f.word("[a-z][a-z0-9_.-]{0,39}", "the name of a figure")] = Field(
        description="Name of the figure, such as loss, accuracy or wer."
    )
    at_most: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="The run ends once the figure is at most this, for figures like loss.",
    )
    at_least: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="The run ends once the figure is at least this, for figures like accuracy.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> UntilMetric:
        if (self.at_most is None) == (self.at_least is None):
            found = (
                "neither 'at_most' nor 'at_least'"
                if self.at_most is None
                else "both 'at_most' and 'at_least'"
            )
            raise f.complain(f"found {found}; give exactly one of them")
        return self


class Until(BaseModel):
    """Goals. The run ends normally, after a later epoch, once the first of them is reached; `measure` is the longest it takes.

    Goals are checked when an epoch ends, at full scale.
    """

    model_config = _SECTION

    samples: int | None = Field(default=None, ge=1, description="Samples trained on.")
    time_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = Field(
        default=None, description="Seconds since the training began."
    )
    usd: f.Usd | None = Field(
        default=None,
        description="Dollars spent. Unlike `budget_usd` it may be exceeded, and it is not reached while a price is unknown.",
    )
    metric: UntilMetric | None = Field(
        default=None,
        description="A value of a held-out figure, at any evaluation (data.evaluate_every_epochs).",
    )

    @model_validator(mode="after")
    def _any(self) -> Until:
        if not self.as_mapping():
            raise f.complain(f"names no goal; give one of {', '.join(type(self).model_fields)}")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return the goals that are set."""
        return {key: value for key in type(self).model_fields if (value := getattr(self, key)) is not None}

    def __str__(self) -> str:
        goals = [f"{key} {_plain(value)}" for key, value in self.as_mapping().items() if key != "metric"]
        if self.metric is not None:
            low, high = self.metric.at_least, self.metric.at_most
            bound = f"at most {high:g}" if low is None else f"at least {low:g}"
            goals.append(f"{self.metric.name} {bound}")
        return ", ".join(goals)


class Train(BaseModel):
    """How the training goes on and ends."""

    model_config = _SECTION

    until: Until | None = Field(
        default=None, description="Goals that end the run before all epochs of `measure`."
    )


def _plain(value: float | Decimal) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
