"""Prompts in bounded memory: many are drawn and reduced a batch at a time."""

from collections.abc import Iterator

import numpy as np

CACHE = 2**18  # numbers, 2 MB: drawn and reduced while they are in cache
MEMORY = 2**20  # numbers, 8 MB


def batches(count: int, numbers_each: int, at_once: int = MEMORY) -> Iterator[slice]:
    """Slices that cut ``count`` prompts into batches of at most ``at_once`` numbers, and of at least one prompt."""
    step = max(1, at_once // numbers_each)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def affordable_prompts(length: int, dim: int, number_budget: int, most: int, fewest: int = 24) -> int:
    """How many prompts of this length a budget of random numbers allows, within [fewest, most]."""
    return int(np.clip(number_budget // (length * dim), fewest, most))
