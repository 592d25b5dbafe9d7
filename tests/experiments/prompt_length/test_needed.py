"""Needed lengths, exactly: closed forms, limits, the U shape, windows of a budget, and what moves the number."""

import numpy as np
import pytest
from scipy import special, stats
from statistics_checks import worst

from lib.experiments.prompt_length import laws, needed, over_queries
from lib.finite_prompt.needed_length import deviation, length_for, length_law


def test_needed_lengths_of_quiet_scores_and_of_moment_attention():
    tolerances = [0.1, 0.02]
    found = needed.u_shape(deviations=np.geomspace(0.05, 4, 25), dimensions=[1, 9], tolerances=tolerances)
    assert found.measured is None
    quiet = found.table[found.table["s"] == 0.05]
    for name in ("length", "moment", "law"):  # s -> 0: D / (s tolerance)^2 for all three
        assert quiet[name].to_numpy() == pytest.approx(quiet["dimension"] / (0.05 * quiet["tolerance"]) ** 2, rel=0.01)
    # Moment attention: tolerance^2 L^2 - (D / s^2 + D + 1) L + D = 0.
    D, p = found.table["dimension"], found.table["tolerance"] ** 2
    q = D / found.table["s"] ** 2 + D + 1
    assert found.table["moment"].to_list() == np.ceil((q + np.sqrt(q**2 - 4 * p * D)) / (2 * p)).to_list()


def test_best_scores_are_best():
    found = needed.best_scores(dimensions=[1, 25], tolerance=1e-3)
    table = found.table
    assert table["predicted_s"][0] ** 2 == pytest.approx((np.sqrt(5) - 1) / 2)  # of e^x (1 + x) / x
    for D, s, length in zip(table["dimension"], table["s"], table["length"], strict=True):
        assert length < min(length_for(0.97 * s, D, 1e-3), length_for(1.03 * s, D, 1e-3))
    assert worst(found.measured) == pytest.approx(1, abs=2e-3)
    assert worst(found.near_miss) < 0.99 and worst(found.control) < 0.8


def test_the_next_order_of_the_needed_length():
    """The exact length less the law, for a tolerance small enough."""
    for s, D in ((0.5, 1), (1.0, 9)):
        tokens = needed._between_whole_lengths(s, D, 1e-3) - length_law(s, D, 1e-3)
        assert tokens == pytest.approx(float(laws.next_order(s, D)), rel=1e-2)
    x = 1e-4  # quiet scores: to first order eta_2 = -x and zeta_2 = -x
    assert laws.next_order(np.sqrt(x), 5) == pytest.approx(-x, rel=0.01)
    found = needed.beyond_the_law(dimensions=[1, 16], tolerance=0.005)
    assert worst(found.measured) == pytest.approx(1, abs=1e-3)
    assert worst(found.near_miss) > 1.002 or worst(found.near_miss) < 0.998


def test_loud_scores_need_a_token_as_large_as_the_tolerance_asks():
    found = needed.loud(s=12.0, tolerances=[0.4, 0.5])
    assert worst(found.measured) == pytest.approx(1, abs=0.06)
    assert worst(found.control) < 1e-6
    beyond = stats.norm.sf(0.5 * 12)
    assert laws.loud_length(12.0, 0.5, settled=False) == pytest.approx(1 / beyond)
    c = np.log(np.sqrt(np.pi)) + np.euler_gamma + 0.5 * special.digamma(0.5)
    assert laws.loud_length(12.0, 0.5) == pytest.approx(np.exp(-c) / beyond)


def test_windows_of_a_budget():
    table = needed.windows(budgets=[999], dimensions=[1, 16], tolerances=[0.1, 0.3]).table
    wide = table[(table["dimension"] == 1) & (table["tolerance"] == 0.1)].iloc[0]
    for end in (wide["low"], wide["high"]):
        assert deviation(end, 1, 999) == pytest.approx(0.1, rel=1e-9)
    assert length_for((wide["low"] + wide["high"]) / 2, 1, 0.1) < 999
    none = table[(table["dimension"] == 16) & (table["tolerance"] == 0.1)].iloc[0]
    assert np.isnan(none["low"]) and none["best"] > 0.1


def test_a_budget_is_enough_up_to_one_dimension():
    found = needed.affordable_dimension(tolerance=0.1, budget=999)
    row = found.table.iloc[0]
    assert needed.best_at_length(row["exact"], 999).deviation == pytest.approx(0.1, rel=1e-5)
    assert found.measured.value == row["exact"] / row["predicted"] == pytest.approx(1, abs=2e-3)
    assert abs(found.near_miss.value - 1) > 2 * abs(found.measured.value - 1)
    below, above = (  # moment attention, which is best at loud scores
        needed.u_shape(deviations=[25.0], dimensions=[x * row["moment"]], tolerances=[0.1]).table["moment"][0]
        for x in (0.99, 1.01)
    )
    assert below <= 999 < above


def test_effects_scale_as_they_must():
    """A temperature and a query norm multiply s and leave the output dimension."""
    table = needed.effects(dim=4, tolerances=[0.3, 0.1], seed=1).table.set_index(["effect", "value"])
    for d in (4, 16):
        cold, hot = (table.loc[(name, str(d))] for name in ("dimension d", "no temperature, d"))
        assert hot["s"] == pytest.approx(np.sqrt(d) * cold["s"])
        assert hot["output dimension"] == pytest.approx(cold["output dimension"])
    usual, double = table.loc[("dimension d", "4")], table.loc[("query norm / √d", "2")]
    assert double["s"] == pytest.approx(2 * usual["s"])
    assert double["output dimension"] == pytest.approx(usual["output dimension"])
    assert np.all(table["10%"] > table["30%"])
    assert np.all(table["output dimension"] >= 1)


# ---- over queries


def test_quiet_scores_over_queries_need_one_over_the_coupling():
    found = over_queries.coupling_chart(couplings=[1e-4, 0.1], dimensions=[1, 3], tolerances=[0.2, 0.1]).table
    quiet = found[found["coupling"] == 1e-4]  # lambda -> 0: E|T_L - T|^2 = d / L, E|V Gamma U z|^2 = lambda d
    expected = 1 / (quiet["coupling"] * quiet["tolerance"] ** 2)
    assert quiet["length"].to_numpy() == pytest.approx(expected.to_numpy(), rel=2e-3)
    assert found.groupby(["dimension", "coupling"])["length"].apply(lambda x: x.is_monotonic_increasing).all()


def test_halving_costs_four_times_below_the_transition():
    found = over_queries.halving(couplings=[0.1, 2.0], length=1e12)
    assert found.table["growth"][0] == pytest.approx(2, abs=1e-6)
    assert found.table["growth"][1] > 5
    assert found.table["predicted"].to_list() == pytest.approx([2, 4 / (np.sqrt(3) - 1)])  # 2 / rho
    assert worst(found.control) == pytest.approx((np.sqrt(3) - 1) / 2)
