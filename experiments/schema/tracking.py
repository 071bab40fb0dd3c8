"""The section `tracking` of an experiment: experiment trackers that are written while the run goes on."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from experiments.schema.fields import complain, word

_SECTION = ConfigDict(frozen=True, extra="forbid", strict=True)
_LONGEST = 1000


def _folder(value: str) -> str:
    if "://" in value and not value.startswith("file:///"):
        raise complain(f"'{value[:80]}' is not a folder; use a path on this machine, or file:///path")
    return value


def _folder_or_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https"):
        return _folder(value)
    if parts.username or parts.password or not parts.hostname:
        raise complain(
            f"'{parts.scheme}://{parts.netloc.rpartition('@')[2][:80]}' must have a host and no credentials: MLflow reads "
            "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD"
        )
    return value


Folder = Annotated[str, Field(min_length=1, max_length=_LONGEST), AfterValidator(_folder)]


class WandbTracking(BaseModel):
    """Weights & Biases, without a connection: `wandb sync` uploads the folder."""

    model_config = _SECTION

    project: Annotated[str, word(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a name of a W&B project")] = Field(
        description="Name of the project."
    )
    folder: Folder = Field(
        description="Folder in which W&B keeps its own folder `wandb`. Relative paths start at this file's folder."
    )


class Tracking(BaseModel):
    """Experiment trackers that get the run's settings and figures while it goes on (docs/export.md).

    A tracker that cannot be written is a warning and never disturbs the run.
    """

    model_config = _SECTION

    tensorboard: Folder | None = Field(
        default=None,
        description="Folder for `tensorboard --logdir`, in which each run has its own. Relative paths start at this file's "
        "folder.",
    )
    mlflow: (
        Annotated[str, Field(min_length=1, max_length=_LONGEST), AfterValidator(_folder_or_url)] | None
    ) = Field(
        default=None,
        description="Folder with the SQLite file mlflow.db, which is created, or the http(s) URL of an MLflow server. Relative "
        "paths start at this file's folder.",
    )
    wandb: WandbTracking | None = Field(default=None, description="A folder for `wandb sync`.")

    @model_validator(mode="after")
    def _any(self) -> Tracking:
        if not self.as_mapping():
            raise complain(f"names no tracker; give one of {', '.join(type(self).model_fields)}")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings of each tracker that is given, as JSON."""
        return self.model_dump(exclude_none=True)
