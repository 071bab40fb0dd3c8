"""The experiment file: parse, validate, resolve into one frozen object, with errors that say where."""

from experiments.spec.errors import Problem, SpecError
from experiments.spec.load import find, from_document, json_schema, library, load, load_all, to_document
from experiments.spec.schema import ExperimentSpec
from experiments.spec.shards import shard_urls
from experiments.spec.slots import Slot, slots

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
