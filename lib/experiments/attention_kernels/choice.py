"""Which kernel is close to softmax, at which prompt length and score deviation: the choice of notebook 05."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from scipy.optimize import brentq

from lib.experiments.attention_kernels.approximations import best_key_variance
from lib.kernels import Linformer, MomentAttention, Performer, Softmax
from lib.kernels.exact_errors import moment_softmax_distance, softmax_size
from lib.notebook import figures
from lib.prompts.streams import stream
from lib.tokens.measure import TokenMeasure


def deviations_from_softmax(
    measures: dict[str, TokenMeasure],
    deviations: list[float],
    lengths: list[int],
    features: int,
    budget: int,
    seed: int,
) -> pd.DataFrame:
    """Relative root-mean-square deviation from softmax over s and L: moment attention, Performer, pooling Linformer.

    Tokens have mean 0 and covariance I; the query looks along the first axis. Performer's keys have the variance that
    is best for Gaussian tokens at this s; pooling, corrected, is to features / 4 rows, a state of the same size as
    Performer's or less. Columns: tokens, length, s, moment, performer, linformer.
    """
    rows, kernel = [], Performer(features)
    for name, measure in measures.items():
        dim = measure.dim
        for length in lengths:
            rng = stream(seed, "choice", name, length)
            tokens = measure.sample(int(np.clip(budget // (length * features), 8, 256)), length, rng)
            for s in deviations:
                a = s * np.eye(dim)[0]
                exact = Softmax()(tokens, a, tokens)
                scale = np.sqrt(best_key_variance(s, dim))
                outputs = {"moment": MomentAttention()(tokens, a, tokens)}
                drawn = [kernel.redraw(int(rng.integers(2**32)))(scale * x, a / scale, x) for x in tokens]
                outputs["performer"] = np.array(drawn)
                if length % (features // 4) == 0 and length > features // 4:
                    outputs["linformer"] = Linformer.pooling(length, features // 4)(tokens, a, tokens)
                size = (exact**2).sum(-1).mean()
                gaps = {k: np.sqrt(((x - exact) ** 2).sum(-1).mean() / size) for k, x in outputs.items()}
                rows.append({"tokens": name, "length": length, "s": s} | gaps)
    return pd.DataFrame(rows)


def choose(table: pd.DataFrame, features: int, dim: int, tolerance: float) -> pd.DataFrame:
    """The table with ``choice``: the kernel of smallest state within the tolerance, if it saves memory over softmax."""
    kernels = {
        "moment": MomentAttention(),
        "performer": Performer(features),
        "linformer": Linformer(*np.zeros((2, features // 4, 1))),
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
    # All that is across the scores enters by its trace: two dimensions stand for all.
    gamma, a, eye = np.diag([1.0, dim - 1]), np.array([s, 0.0]), np.eye(2)
    distance, size = (f(gamma, a, eye, eye, length) for f in (moment_softmax_distance, softmax_size))
    return np.sqrt(distance / size)


def boundary(lengths: list[int], dim: int, tolerance: float) -> pd.Series:
    """For each length the s at which moment attention deviates from softmax by the tolerance, as `exact_deviation`."""

    def gap(log_s, length):
        return np.log(float(exact_deviation(np.exp(log_s), length, dim)) / tolerance)

    found = [brentq(gap, np.log(0.02), np.log(20), args=(x,), xtol=1e-4) for x in lengths]
    return pd.Series(np.exp(found), index=lengths)


def choice_figure(table: pd.DataFrame, boundary: pd.Series, tolerance: float) -> plt.Figure:
    """Which kernel at which s and L, a panel for each kind of tokens.

    Color: moment attention's deviation from softmax. Letter: the choice, M moment, P Performer, F Linformer, S softmax,
    a dot where a prompt is too short to save memory. Line: ``boundary``, the exact s at each length, Gaussian tokens.
    """
    letters = {"moment": "M", "performer": "P", "linformer": "F", "softmax": "S", "any": "·"}
    panels = list(table.groupby("tokens", sort=False))
    figure, axes = figures.panels(len(panels), height=4.2, sharey=True)
    for axis, (name, rows) in zip(axes, panels, strict=True):
        grid = rows.pivot(index="s", columns="length", values="moment")
        edges = [np.arange(n + 1) - 0.5 for n in grid.shape[::-1]]
        image = axis.pcolormesh(*edges, np.clip(grid, 1e-3, 1), norm=LogNorm(1e-3, 1), cmap="cividis_r")
        for row in rows.itertuples():
            x, y = grid.columns.get_loc(row.length), grid.index.get_loc(row.s)
            color = "white" if row.moment > tolerance else "black"
            axis.text(x, y, letters[row.choice], ha="center", va="center", color=color, fontsize=10, weight="bold")
        if name == "Gaussian":
            shown = boundary[boundary.index.isin(grid.columns)]
            x = [grid.columns.get_loc(length) for length in shown.index]
            y = np.interp(np.log(shown), np.log(grid.index), np.arange(len(grid)))
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
