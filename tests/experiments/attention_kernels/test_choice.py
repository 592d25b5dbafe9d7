import numpy as np
import pandas as pd
import pytest

from lib.experiments.attention_kernels import choice
from lib.notebook import figures

TOKENS = ["Gaussian", "mixture"]
CELLS = {"deviations": [0.1, 3.0], "lengths": [2, 32, 1024], "features": 64, "number_budget": 200_000}


def test_of_the_good_kernels_the_one_of_smallest_state_is_chosen():
    """At d = 4 moments keep 24 numbers, a Linformer of 16 rows 128, and 64 random features about 320."""
    good = dict.fromkeys(("moment", "performer", "linformer"), 0.01)
    rows = [good, good | {"moment": 0.5}, good | {"moment": 0.5, "linformer": np.nan}, dict.fromkeys(good, 0.5)]
    table = pd.DataFrame([{"length": 1024} | row for row in rows])
    assert list(choice.choose(table, 64, 4, 0.1)["choice"]) == ["moment", "linformer", "performer", "softmax"]


def test_the_choice_and_its_exact_boundary():
    table = choice.chart(tokens=TOKENS, dim=4, tolerance=0.1, seed=0, **CELLS).table
    chosen = table.set_index(["tokens", "length", "s"])["choice"]
    assert chosen["Gaussian", 1024, 0.1] == chosen["mixture", 1024, 0.1] == "moment"
    assert chosen["mixture", 1024, 3.0] == "softmax"
    assert set(table[table["length"] == 2]["choice"]) == {"any"}  # 16 numbers, and moments are 24
    gaussian = table[(table["tokens"] == "Gaussian") & (table["length"] == 32) & (table["s"] == 0.1)]
    exact = float(choice.exact_deviation(0.1, 32, 4))
    assert gaussian["moment"].item() == pytest.approx(exact, rel=0.15)

    boundary = choice.boundary(lengths=[8, 32, 1024], dims=[4], tolerance=0.1).table
    assert boundary["s"].is_monotonic_increasing
    assert float(choice.exact_deviation(boundary["s"].iloc[-1], 1024, 4)) == pytest.approx(0.1, rel=1e-3)

    figure = choice.choice_figure(table, boundary, 0.1)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["Gaussian tokens", "mixture tokens"]
    figures.plt.close(figure)
