"""Random streams: the seed and every part of the key count, and nothing else does."""

import numpy as np

from lib.prompts.streams import stream


def test_every_part_of_a_key_counts_and_so_does_the_seed():
    keys = [(0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1)]
    first = [stream(*key).integers(2**62) for key in keys]
    assert len(set(first)) == len(keys)
    assert first == [stream(*key).integers(2**62) for key in keys]


def test_a_stream_is_the_same_in_every_process():
    """Python's own hash of a string is not: this number was drawn once."""
    assert stream(3, "toeplitz", 40).integers(10**9) == np.random.default_rng(
        np.random.SeedSequence(3, spawn_key=(1549311725, 40))
    ).integers(10**9)
