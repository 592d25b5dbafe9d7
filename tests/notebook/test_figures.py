"""The shared plots draw what they are given, name every line once, and stay legible."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from lib.notebook import figures


@pytest.fixture
def table():
    lengths = np.array([10, 100, 1000, 10000])
    parts = [
        pd.DataFrame({"L": lengths, "panel": p, "line": k, "exact": c / lengths, "measured": 1.1 * c / lengths})
        for p in ("first", "second")
        for k, c in (("a", 1.0), ("b", 1.01), ("c", 5.0))
    ]
    return pd.concat(parts).assign(low=lambda t: 0.9 * t["measured"], high=lambda t: 1.2 * t["measured"])


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def draw(table):
    figures.use_style()
    return figures.curves(
        table,
        "L",
        hue="line",
        panel="panel",
        points="measured",
        line="exact",
        band=("low", "high"),
        labels=("L", "error"),
        window=(100, 10**9),
    )


def test_theory_is_black_and_measurement_is_colored(table):
    figure = draw(table)
    colors = [line.get_color() for line in figure.axes[0].lines]
    assert colors.count("black") == 3
    assert [axis.get_title() for axis in figure.axes] == ["first", "second"]
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_names_stand_apart_at_every_resolution(table):
    figure = draw(table)
    for dpi in (80, 200):
        figure.set_dpi(dpi)
        figure.canvas.draw()
        boxes = sorted((Text.get_window_extent(t) for t in figure.axes[-1].texts), key=lambda box: box.y0)
        assert len(boxes) == 3
        assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


@pytest.mark.filterwarnings("error")
def test_a_zero_on_a_logarithmic_axis_is_harmless(table):
    table.loc[table["line"] == "a", ["exact", "measured", "low", "high"]] = 0.0
    figure = draw(table)
    figure.canvas.draw()
    assert figure.get_tightbbox().height < 20  # inches


def test_ticks_read_as_numbers():
    assert figures._number(1000) == "1,000"
    assert figures._number(0.1) == "0.1"
    assert figures._number(1e15) == "$10^{15}$"


def test_more_than_three_panels_take_two_rows_of_the_same_width():
    one, two = figures.panels(3)[0], figures.panels(5)[0]
    rows = [len({round(axis.get_position().y0, 3) for axis in figure.axes}) for figure in (one, two)]
    assert rows == [1, 2]
    assert len(two.axes) == 5
    assert two.get_figwidth() == one.get_figwidth() == figures.WIDTH
    assert two.get_figheight() == 2 * one.get_figheight()


def test_what_is_compared_with_is_dashed_and_does_not_stretch_the_axis(table):
    table["limit"] = 1e-9
    figure = figures.curves(table, "L", hue="line", panel="panel", line="exact", reference="limit")
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_color() for line in dashed] == ["black"]
    assert figure.axes[0].get_ylim()[0] > 1e-6


def test_lines_are_in_color_where_there_are_no_points(table):
    figure = figures.curves(table, "L", hue="line", panel="panel", line="exact")
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3
