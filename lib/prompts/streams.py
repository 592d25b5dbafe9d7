"""Random streams: every draw of a notebook comes from its one seed and the name of what is drawn."""

from zlib import crc32

import numpy as np


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """An independent generator for each key, such as ``stream(seed, "toeplitz", length)``.

    Adding an experiment or a prompt length changes no other draw, since a key depends on nothing but itself.

    Args:
        seed: the notebook's root seed, nonnegative.
        key: names and nonnegative whole numbers.
    """
    words = tuple(crc32(part.encode()) if isinstance(part, str) else int(part) for part in key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))
