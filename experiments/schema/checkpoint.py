"""The section `checkpoint` of an experiment: when the state of the training is stored, and where."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from experiments.schema.fields import complain, word
from experiments.schema.shards import shard_urls

# Without '*', which would be a wildcard in the policy of the VMs' role.
_URL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()-]+)*/?"


class Checkpoint(BaseModel):
    """Stored copies of model, optimizer and progress, from which a run goes on if all of its VMs are lost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    every_epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Hivemind epochs from one checkpoint to the next. Give either this or every_s. The state at the end is "
        "stored in any case.",
    )
    every_s: Annotated[float, Field(ge=1, le=86_400)] | None = Field(
        default=None,
        description="Seconds from one checkpoint to the next, which is made at the end of an epoch.",
    )
    keep: int = Field(
        default=2, ge=1, le=1000, description="Number of checkpoints of the run that are kept: the newest."
    )
    to: (
        Annotated[
            str,
            Field(max_length=900),
            word(_URL, "a place for checkpoints: use s3://bucket/prefix, without credentials or '*'"),
            AfterValidator(lambda value: value.rstrip("/")),
        ]
        | None
    ) = Field(
        default=None,
        description="s3://bucket/prefix in the store of the data (data.endpoint). Default: `checkpoints` in the bucket of "
        "data.shards.",
    )
    required: bool = Field(
        default=True,
        description="false: if the launch finds that nothing can be stored there, the run stores none, with a warning. true: "
        "it is refused.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Checkpoint:
        if (self.every_epochs is None) == (self.every_s is None):
            both = "both 'every_epochs' and 'every_s'"
            found = "neither 'every_epochs' nor 'every_s'" if self.every_s is None else both
            raise complain(f"found {found}; give exactly one of them")
        return self

    def folder(self, shards: str) -> str:
        """Return where checkpoints are stored, s3://bucket/prefix. `shards`: the pattern `data.shards`."""
        if self.to is not None:
            return self.to
        bucket = shard_urls(shards)[0].removeprefix("s3://").partition("/")[0]
        return f"s3://{bucket}/checkpoints"
