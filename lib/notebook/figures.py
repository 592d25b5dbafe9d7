"""One style and the few plots that all notebooks share: theory in black, measurement in color, labels on the lines."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

WIDTH = 9.0  # inches: the width of a page
BLACK = "black"  # what is exact, beside what was measured


def use_style() -> None:
    """The collection's style, for figures read at the width of a page and on a phone."""
    plt.rcdefaults()  # the reader's matplotlibrc may ask for anything, TeX included
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette="colorblind",
        rc={
            "figure.dpi": 110,
            "savefig.dpi": 160,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.labelsize": 11,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "font.size": 11,
            "svg.fonttype": "none",
        },
    )


def panels(n: int, height: float = 3.6, **kwargs) -> tuple[plt.Figure, np.ndarray]:
    """A row of n panels as wide as the page, in rows of at most three: titles need the width."""
    columns = n if n <= 3 else 2 if n == 4 else 3
    rows = -(-n // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height * rows), squeeze=False, **kwargs)
    for unused in axes.ravel()[n:]:
        unused.remove()
    return figure, axes.ravel()[:n]


def curves(
    table: pd.DataFrame,
    x: str,
    *,
    hue: str,
    panel: str | None = None,
    points: str | None = None,
    line: str | None = None,
    reference: str | None = None,
    band: tuple[str, str] | None = None,
    scale: tuple[str, str] = ("log", "log"),
    labels: tuple[str, str] = ("", ""),
    window: tuple[float, float] | None = None,
    sharey: bool = True,
    height: float = 3.6,
) -> plt.Figure:
    """Curves of a tidy table: one panel a value of ``panel``, one color a value of ``hue``, named at its end.

    Args:
        table: tidy; columns are named by the other arguments.
        x, points, line, band: the abscissa, points in color, lines in black (in color where there are no points), and
            the two ends of the 95 % band of the points.
        reference: a column drawn once a panel, dashed black: what all of it is compared with.
        hue, panel: what colors and panels tell apart.
        scale, labels: of both axes.
        window: abscissas to shade, where a slope was fitted.

    Returns:
        The figure, to be shown by ``Results.figure``.
    """
    groups = [("", table)] if panel is None else list(table.groupby(panel, sort=False))
    names = list(dict.fromkeys(table[hue]))
    colors = dict(zip(names, palette(len(names)), strict=True))
    shown = [x], [column for column in (points, line) if column]
    has_logarithm = [(table[columns] > 0).any(axis=None) for columns in shown]  # zeros alone have none
    scale = tuple(name if fits else "linear" for name, fits in zip(scale, has_logarithm, strict=True))
    figure, axes = panels(len(groups), height=height, sharey=sharey)
    for axis, (title, group) in zip(axes, groups, strict=True):
        if window:
            axis.axvspan(max(window[0], table[x].min()), min(window[1], table[x].max()), color="0.5", alpha=0.12, lw=0)
        axis.set(xscale=scale[0], yscale=scale[1], title=title, xlabel=labels[0])
        for name, rows in group.groupby(hue, sort=False):
            if line:
                axis.plot(rows[x], rows[line], color=BLACK if points else colors[name], lw=1.2, zorder=2)
            if points:
                axis.plot(rows[x], rows[points], "o", ms=4.5, color=colors[name], zorder=3)
            if band and ((rows[band[1]] > 0).any() or scale[1] != "log"):
                axis.fill_between(rows[x], rows[band[0]], rows[band[1]], color=colors[name], alpha=0.3, lw=0)
        if reference:
            limits = axis.get_ylim()  # of the lines: what they are compared with may lie far away
            rows = group.drop_duplicates(x).sort_values(x)
            axis.plot(rows[x], rows[reference], "--", color=BLACK, lw=1.4, zorder=4)
            if scale[1] == "log":
                axis.set_ylim(limits)
        plain_ticks(axis, table[x])
    axes[0].set_ylabel(labels[1])
    if len(axes) > 3:
        axes[len(axes) // 2].set_ylabel(labels[1])
    name_lines(axes[-1], groups[-1][1], x, points or line, hue, colors)
    return figure


def name_lines(axis, table, x: str, y: str, hue: str, colors: dict) -> None:
    """Write each line's name to the right of the axis at the height of its end, moved apart where names would overlap.

    Heights are fractions of the axis, so that they hold at every resolution.
    """
    axis.autoscale_view()
    to_fraction = (axis.transData - axis.transAxes).transform
    ends = []
    for name, rows in table.groupby(hue, sort=False):
        shown = rows[np.isfinite(rows[y]) & ((rows[y] > 0) | (axis.get_yscale() != "log"))]
        end = np.clip(to_fraction((shown[x].iloc[-1], shown[y].iloc[-1])), 0, 1) if len(shown) else (1.0, 0.0)
        ends.append((name, *end))
    rows = axis.get_subplotspec().get_gridspec().nrows
    gap = 13 / (72 * axis.figure.get_figheight() / rows * 0.7)  # of a line of text
    lowest = 0.0
    for rank, (name, px, py) in enumerate(sorted(ends, key=lambda item: item[2])):
        room = 1.0 - gap * (len(ends) - 1 - rank)  # leave space for the names above
        lowest = max(min(py, room), lowest)
        axis.annotate(
            str(name),
            (px, py),
            xycoords="axes fraction",
            xytext=(1.04, lowest),
            textcoords="axes fraction",
            color=colors[name],
            va="center",
            fontsize=9.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colors[name], "lw": 0.6, "alpha": 0.5, "shrinkA": 0, "shrinkB": 0},
        )
        lowest += gap


def plain_ticks(axis, abscissas) -> None:
    """Numbers that people read: 1000 and not 10^3, and whole numbers where the abscissas are whole."""
    for side in (axis.xaxis, axis.yaxis):
        low, high = sorted(side.get_view_interval())
        if side.get_scale() != "log" or low <= 0:
            continue
        side.set_major_formatter(FuncFormatter(_number))
        if len(axis.figure.axes) > 2 and side is axis.xaxis:  # narrow panels
            side.set_major_locator(LogLocator(numticks=3))
        if high / low < 100:  # few powers of ten: name some numbers in between as well
            side.set_minor_locator(LogLocator(subs=(2, 5) if high / low > 8 else (1.5, 2, 3, 4, 5, 6, 8)))
            side.set_minor_formatter(FuncFormatter(_number))
        else:
            side.set_minor_locator(LogLocator(subs=(1, 2, 5)))
            side.set_minor_formatter(NullFormatter())
    if axis.get_xscale() == "linear" and pd.api.types.is_integer_dtype(abscissas):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _number(value: float, _position=None) -> str:
    if value <= 0 or 1e-3 <= value < 1e5:
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    power = int(np.floor(np.log10(value) + 1e-9))
    factor = f"{value / 10.0**power:.2g}"
    return f"$10^{{{power}}}$" if factor == "1" else f"${factor}\\cdot 10^{{{power}}}$"


def palette(n: int) -> Sequence:
    """Colors that stay apart for color-blind readers; an ordered ramp beyond eight."""
    return sns.color_palette("colorblind", n) if n <= 8 else sns.color_palette("viridis", n)
