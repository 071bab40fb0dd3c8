"""Parse, validate and resolve an experiment file into one frozen object. Errors have a position."""

from experiments.parse.load import find, from_document, json_schema, library, load, load_all, to_document
from experiments.schema.errors import Problem, SpecError
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from experiments.schema.slots import Slot, slots

__all__ = [
    "ExperimentSpec",
    "Problem",
    "Slot",
    "SpecError",
    "find",
    "from_document",
    "json_schema",
    "library",
    "load",
    "load_all",
    "shard_urls",
    "slots",
    "to_document",
]
