"""Operations that the tests of pipelines name by import path."""

from __future__ import annotations

import numpy as np

from experiments.pipeline.errors import BadValueError


def text(data):
    return data.decode()


def upper(text):
    return text.upper()


def length(text, add=0):
    return len(text) + add


def noise(data, rng, size=4):
    return rng.integers(0, 256, size)


def add_noise(array, rng):
    return array + rng.integers(0, 256, array.shape)


def fail(data):
    return {}[data]


def fail_in_library(data):
    return np.zeros(3).reshape(2, 2)


def refuse(data):
    raise BadValueError("it is 3 bytes long, not 4")


def nothing(data):
    return None


def read(data, path):
    with open(path, "rb") as file:
        return file.read() + data


class Shout:
    """A callable that is no function."""

    def __call__(self, text):
        return text + "!"


shout = Shout()
