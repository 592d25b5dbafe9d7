import pytest

from lib.experiments.attention_kernels import costs
from lib.kernels import LinearAttention, MomentAttention, Performer


def test_counts_are_relative_to_softmax():
    kernels = {"moment": MomentAttention(), "Performer": Performer(16)}
    table = costs.counts(kernels=kernels, lengths=[64, 4096], dim=8).table.set_index(["kernel", "length"])
    assert table.loc[("moment", 4096), "operations"] < 0.01
    assert table.loc[("moment", 4096), "state"] == pytest.approx(80 / (4096 * 16))
    assert table.loc[("Performer", 64), "shared"] == 16 * 8


def test_wall_times_are_relative_to_softmax():
    times = costs.wall_times(kernels={"linear": LinearAttention()}, lengths=[32, 64], dim=4).table
    assert (times["seconds"] > 0).all()
    assert (times.set_index("kernel").loc["softmax", "ratio"] == 1).all()
    seconds = times.set_index(["kernel", "length"])["seconds"]
    ratio = times.set_index(["kernel", "length"])["ratio"]
    assert ratio["linear", 64] == pytest.approx(seconds["linear", 64] / seconds["softmax", 64])
