"""What a kernel costs for one head and one prompt whose tokens are all queries, too."""

from timeit import repeat

import numpy as np
import pandas as pd

from lib.kernels import AttentionKernel, Softmax
from lib.notebook.comparison import Comparison

TIMED = 3  # runs of which the fastest counts, after one to warm up


def counts(*, kernels: dict[str, AttentionKernel], lengths: list[int], dim: int) -> Comparison:
    """Operations and kept numbers, relative to softmax.

    Args:
        kernels: by name.
        lengths: prompt lengths L.
        dim: of keys and of values.

    Returns:
        A row a kernel and length: kernel, length, operations, state, and ``shared``, numbers kept once for all prompts,
        as they are. Nothing is judged.
    """
    rows = []
    for length in lengths:
        exact = Softmax().cost(length, dim, dim)
        for name, kernel in kernels.items():
            cost = kernel.cost(length, dim, dim)
            row = {"kernel": name, "length": length, "operations": cost.operations(length) / exact.operations(length)}
            rows.append(row | {"state": cost.state / exact.state, "shared": cost.shared})
    return Comparison(pd.DataFrame(rows))


def wall_times(*, kernels: dict[str, AttentionKernel], lengths: list[int], dim: int) -> Comparison:
    """Seconds, here and now, of each kernel and of softmax: to be looked at, not compared with another run.

    Arguments as for :func:`counts`.

    Returns:
        A row a kernel and length, softmax first: kernel, length, seconds, ratio (to softmax). Nothing is judged.
    """
    rows, rng = [], np.random.default_rng(0)
    for length in lengths:
        tokens = rng.standard_normal((length, dim)) / dim**0.25
        for name, kernel in ({"softmax": Softmax()} | kernels).items():
            _, *seconds = repeat(lambda kernel=kernel, x=tokens: kernel(x, x, x), number=1, repeat=1 + TIMED)
            rows.append({"kernel": name, "length": length, "seconds": min(seconds)})
    table = pd.DataFrame(rows)
    return Comparison(table.assign(ratio=table["seconds"] / table.groupby("length")["seconds"].transform("first")))
