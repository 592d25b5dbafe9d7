"""Which kernel is close to softmax, at which prompt length and score deviation."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from scipy.optimize import brentq

from lib.experiments.attention_kernels.moments import isotropic
from lib.experiments.attention_kernels.random_features import best_key_variance
from lib.experiments.settings import unit_measures
from lib.kernels import Linformer, MomentAttention, Performer, Softmax
from lib.kernels.exact_errors import moment_softmax_distance, softmax_size
from lib.notebook import figures
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.streams import stream

LETTERS = {"moment": "M", "performer": "P", "linformer": "F", "softmax": "S", "any": "·"}
SHADES = LogNorm(1e-3, 1)  # of the deviation from softmax


def chart(
    *,
    tokens: list[str],
    dim: int,
    deviations: list[float],
    lengths: list[int],
    features: int,
    number_budget: int,
    tolerance: float,
    seed: int,
) -> Comparison:
    """Relative root-mean-square deviation from softmax over s and L, and which kernel that recommends.

    The query looks along the first axis. Performer's keys have the variance that is best for Gaussian tokens at this s.
    Linformer is pooling, corrected, to a quarter as many rows as Performer has features: no larger a state.

    Args:
        tokens: names of `unit_measures`: mean 0, covariance I.
        dim: dimension d of the tokens.
        deviations: s, standard deviations of the scores.
        lengths: prompt lengths L.
        features: m of Performer.
        number_budget: random features a cell, about.
        tolerance: relative deviation that is good enough.
        seed: of prompts and features.

    Returns:
        A row a cell: tokens, length, s; moment, performer, linformer (their deviations, NaN where rows do not fit);
        choice, as :func:`choose` says. Nothing is judged.
    """
    found, kernel, rows = [], Performer(features), _linformer_rows(features)
    for name in tokens:
        measure = unit_measures(dim)[name]
        for length in lengths:
            rng = stream(seed, "choice", name, length)
            prompts = measure.sample(affordable_prompts(length, features, number_budget, 256, fewest=8), length, rng)
            for s in deviations:
                a = s * np.eye(dim)[0]
                exact = Softmax()(prompts, a, prompts)
                scale = np.sqrt(best_key_variance(s, dim))
                drawn = [kernel.redraw(int(rng.integers(2**32)))(scale * x, a / scale, x) for x in prompts]
                outputs = {"moment": MomentAttention()(prompts, a, prompts), "performer": np.array(drawn)}
                if length % rows == 0 and length > rows:
                    outputs["linformer"] = Linformer.pooling(length, rows)(prompts, a, prompts)
                size = (exact**2).sum(-1).mean()
                gaps = {k: np.sqrt(((x - exact) ** 2).sum(-1).mean() / size) for k, x in outputs.items()}
                found.append({"tokens": name, "length": length, "s": s} | gaps)
    return Comparison(choose(pd.DataFrame(found), features, dim, tolerance))


def _linformer_rows(features: int) -> int:
    """Rows p whose state is no larger than that of Performer with so many features."""
    return features // 4


def choose(table: pd.DataFrame, features: int, dim: int, tolerance: float) -> pd.DataFrame:
    """The table with ``choice``: the kernel of smallest state within the tolerance, if it saves memory over softmax.

    ``softmax`` where none is within the tolerance, ``any`` where none saves memory.
    """
    kernels = {
        "moment": MomentAttention(),
        "performer": Performer(features),
        "linformer": Linformer(*np.zeros((2, _linformer_rows(features), 1))),
    }
    chosen = []
    for row in table.itertuples():
        states = {k: kernel.cost(row.length, dim, dim).state for k, kernel in kernels.items()}
        saving = {k: n for k, n in states.items() if n < Softmax().cost(row.length, dim, dim).state}
        good = [k for k in saving if getattr(row, k) <= tolerance]
        chosen.append(min(good, key=saving.get) if good else ("softmax" if saving else "any"))
    return table.assign(choice=chosen)


def exact_deviation(s: float, length, dim: int) -> np.ndarray:
    """Relative root-mean-square deviation of moment attention from softmax, exact, isotropic Gaussian tokens."""
    distance, size = (f(*isotropic(dim, s), length) for f in (moment_softmax_distance, softmax_size))
    return np.sqrt(distance / size)


def boundary(*, lengths: list[int], dims: list[int], tolerance: float) -> Comparison:
    """The largest s at which moment attention is within the tolerance of softmax, as :func:`exact_deviation` has it.

    Args:
        lengths: prompt lengths L.
        dims: dimensions d of isotropic Gaussian tokens.
        tolerance: relative deviation.

    Returns:
        A row a dimension and length: dimension, length, s (nan if it is nowhere between 0.02 and 20). Nothing is
        judged.
    """

    def gap(log_s, length, dim):
        return np.log(float(exact_deviation(np.exp(log_s), length, dim)) / tolerance)

    rows, ends = [], (np.log(0.02), np.log(20))
    for dim in dims:
        for length in lengths:
            crossed = gap(ends[0], length, dim) < 0 < gap(ends[1], length, dim)
            s = np.exp(brentq(gap, *ends, args=(length, dim), xtol=1e-4)) if crossed else np.nan
            rows.append({"dimension": dim, "length": length, "s": s})
    return Comparison(pd.DataFrame(rows))


def choice_figure(table: pd.DataFrame, boundary: pd.DataFrame, tolerance: float) -> plt.Figure:
    """Which kernel at which s and L, a panel for each kind of tokens.

    Color: moment attention's deviation from softmax. Letter: the choice, M moment, P Performer, F Linformer, S softmax,
    a dot where a prompt is too short to save memory. Line: the exact boundary (length, s) for Gaussian tokens.
    """
    panels = list(table.groupby("tokens", sort=False))
    figure, axes = figures.panels(len(panels), height=4.2, sharey=True)
    for axis, (name, rows) in zip(axes, panels, strict=True):
        grid = rows.pivot(index="s", columns="length", values="moment")
        edges = [np.arange(n + 1) - 0.5 for n in grid.shape[::-1]]
        image = axis.pcolormesh(*edges, np.clip(grid, SHADES.vmin, SHADES.vmax), norm=SHADES, cmap="cividis_r")
        for row in rows.itertuples():
            x, y = grid.columns.get_loc(row.length), grid.index.get_loc(row.s)
            color = "white" if row.moment > tolerance else "black"
            axis.text(x, y, LETTERS[row.choice], ha="center", va="center", color=color, fontsize=10, weight="bold")
        if name == "Gaussian":
            shown = boundary[boundary["length"].isin(grid.columns)]
            x = [grid.columns.get_loc(length) for length in shown["length"]]
            y = np.interp(np.log(shown["s"]), np.log(grid.index), np.arange(len(grid)))
            axis.plot(x, y, color="white", lw=2.5)
            axis.plot(x, y, color=figures.BLACK, lw=1.4)
        axis.set_xticks(range(grid.shape[1]), [f"{x:d}" for x in grid.columns], fontsize=8.5)
        axis.set_yticks(range(grid.shape[0]), [f"{x:g}" for x in grid.index])
        axis.set(title=f"{name} tokens", xlabel="prompt length L")
        axis.grid(False)
    axes[0].set_ylabel("s, standard deviation of the scores")
    bar = figure.colorbar(image, ax=list(axes), label="deviation of moment attention from softmax", shrink=0.9)
    bar.ax.axhline(tolerance, color="black", lw=2)
    return figure
