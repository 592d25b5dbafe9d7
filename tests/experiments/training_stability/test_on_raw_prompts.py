"""Notebook 03 on raw prompts, at tiny size: stochastic training, parametrizations, random starts, other tokens."""

import numpy as np
import pytest
from scipy.special import softmax

from lib.experiments import stochastic_training
from lib.experiments.training_stability import exchanged, other_tokens, parametrizations, random_starts
from lib.regression.best_heads import best_softmax
from lib.regression.head_risk import head_risks
from lib.regression.task import InContextRegression
from lib.tokens.families import Rademacher


@pytest.fixture(scope="module")
def problem():
    return InContextRegression(np.diag([1.5, 1.0, 0.5]), 0.3)


@pytest.fixture(scope="module")
def uneven():
    return InContextRegression(np.diag([2.0, 1.0, 0.5]), 0.3)


def test_sgd_follows_its_own_flow_and_not_the_other(problem):
    found = stochastic_training.sgd_checkpoints(
        problem=problem, lengths=[20], alpha=0.8, step_size=0.01, n_steps=150, seeds=3, batch=64, seed=0
    )
    table = found.table
    assert set(table["attention"]) == {"softmax", "linear"}
    assert np.abs(table["measured / exact"] - 1).max() < 0.1
    assert (table["low"] <= table["measured"]).all() and (table["measured"] <= table["high"]).all()
    softmax_only = table[table["attention"] == "softmax"]
    assert found.control.values == pytest.approx(softmax_only["other"].to_numpy())
    assert found["both"].control.values == pytest.approx(table["other"].to_numpy())
    speed = found["speed"]
    assert speed.measured.values == pytest.approx([1, 1], abs=0.1)
    assert (speed.near_miss.values < speed.measured.values - 0.03).all() and (speed.control.values < 0.75).all()
    wide = found["both"].measured.estimate((0.5, 2.0))
    assert (wide.low, wide.high) == (table["low / exact"].min(), table["high / exact"].max())


def test_speeds_are_those_of_the_parameters():
    time = np.append(0, np.geomspace(0.1, 5, 12))
    exact = np.stack([np.exp(-time), 1 - np.exp(-0.3 * time)], 1)
    faster = np.stack([np.exp(-1.03 * time), 1 - np.exp(-0.3 * 1.03 * time)], 1)
    found = stochastic_training.speeds(np.stack([exact, faster]), exact, time)
    assert found == pytest.approx([1.0, 1.03], abs=2e-3)


def test_a_step_too_large_shows_in_the_speed(problem):
    settings = {"length": 20, "time": np.append(0, np.geomspace(0.02, 1.5, 12))}
    flow = stochastic_training.FasterFlows.of(problem, "softmax", problem.balanced_init(0.8), **settings)
    clocks = flow.clocks(flow.slightly[None])
    assert clocks["slightly"].item() == pytest.approx(1)
    assert clocks["speed"].item() == pytest.approx(stochastic_training.SLIGHTLY, abs=5e-3)
    assert clocks["twice"].item() < 0.7


def test_parametrizations_follow_flows_of_their_own(problem):
    found = parametrizations.parametrizations(
        problem=problem, length=20, alpha=0.8, step_size=0.005, n_steps=120, seeds=4, batch=128, seed=0
    )
    assert list(found.table["start"].unique()) == ["(U, V)", "(Q, K, V, O)"]
    assert np.abs(found.table["measured / exact"] - 1).max() < 0.1
    assert np.abs(found.table["in block"] / found.table["exact"] - 1).max() < 0.1
    assert found.measured.values == pytest.approx([1, 1], abs=0.12)
    assert np.abs(found.near_miss.values - 1).max() > 0.15
    assert (found.control.values < 0.75).all()


def test_signs_have_an_exact_risk():
    signs, problem = other_tokens.SignRisk(3, 0.3, 20), InContextRegression(np.eye(3), 0.3)
    tokens, query, target = problem.sample(40_000, 20, np.random.default_rng(0), Rademacher(3))
    omega, b = 0.6, 1.5
    p = softmax(omega * np.einsum("nld,nd->nl", tokens[..., :3], query), axis=1)
    losses = (b * np.vecdot(p, tokens[..., 3]) - target) ** 2 / 2
    assert abs(signs.risk(omega, b) - losses.mean()) < 4 * losses.std() / 200
    longest = other_tokens.SignRisk(3, 0.3, 10**9)
    assert longest.risk(omega, b) == pytest.approx(1.5 * (b * np.tanh(omega) - 1) ** 2, abs=1e-6)


def test_descent_on_signs_is_that_of_the_exact_risk():
    signs, alpha, step = other_tokens.SignRisk(3, 0.3, 20), 0.8, 1e-3
    first, second = signs.descent(alpha, step, np.array([0, 1]))
    omega, b, h = first[0], first[-1], 1e-5
    assert (omega, b) == (pytest.approx(alpha / 3**0.5), alpha)
    by_omega = (signs.risk(omega + h, b) - signs.risk(omega - h, b)) / (2 * h)
    by_b = (signs.risk(omega, b + h) - signs.risk(omega, b - h)) / (2 * h)
    assert (second - first)[[0, -1]] == pytest.approx([-step * by_omega / 3, -step * by_b], rel=1e-5)


def test_other_tokens_train_too():
    found = other_tokens.other_tokens(
        dim=3,
        noise_std=0.3,
        lengths=[10, 40],
        alpha=0.8,
        step_size=0.02,
        n_steps=150,
        seeds=3,
        batch=64,
        held_out=500,
        seed=0,
    )
    assert set(found.table["tokens"]) == {"Rademacher", "uniform"}
    assert found.measured.values == pytest.approx([1], abs=0.1)
    assert found.near_miss.values == pytest.approx(found.measured.values / other_tokens.LARGER, rel=0.02)
    assert (np.abs(found.control.values - 1) > 0.2).all()


def test_the_exchanged_head_leaves_the_other_directions(uneven):
    # For long prompts the risk tends to that of the directions which it does not learn, from above.
    found = exchanged.saddle(problem=uneven, lengths=[50, 10**6], seed=0)
    assert found.table["limit"].to_numpy() == pytest.approx([(1.0 + 0.5) / 2] * 2)
    assert found.table["risk"].iloc[0] > 0.9
    assert found.table["risk"].iloc[1] == pytest.approx(0.75, rel=0.02)
    assert found.measured.value == pytest.approx(1, abs=0.05)
    assert found["short"].measured.high < 0 < found["short"].near_miss.low
    assert found["short"].control.low > 0


def test_the_derived_hessian_is_that_of_the_infinite_risk(uneven):
    # The risk of any head given w, for an infinite prompt: the prediction is v' G U x_q.
    rng, head = np.random.default_rng(0), exchanged.Exchanged(uneven, 0.3, 1.4)
    w, query = rng.standard_normal((200_000, 3)), rng.standard_normal((200_000, 3)) @ uneven.query_root

    def losses(a, b):
        moved = head.head.moved(exchanged.Head.of_block(np.diag(a[::-1]), b), 1.0)
        tilt = query @ moved.U.T
        x = (tilt[:, :-1] + w * tilt[:, -1:]) @ uneven.covariance
        image = np.concatenate([x, np.vecdot(x, w)[:, None] + 0.09 * tilt[:, -1:]], 1)
        return (image @ moved.v - np.vecdot(query, w)) ** 2 / 2

    def second(i, j, h=0.02):
        e, f = h * np.eye(4)[i], h * np.eye(4)[j]
        ends = [losses((s * e + t * f)[:3], (s * e + t * f)[3]) * s * t for s in (1, -1) for t in (1, -1)]
        return (sum(ends) / (4 * h * h)).mean()

    derived = head.limit_hessian()  # its a_i by increasing eigenvalue
    for i, j in ((0, 3), (1, 3), (2, 3), (2, 2), (3, 3), (0, 0)):
        assert second(i, j) == pytest.approx(derived[i, j], rel=0.05, abs=0.02)
    assert np.linalg.eigvalsh(derived)[0] < -0.1


def test_the_exchanged_risk_is_that_of_raw_prompts(uneven):
    # One head of the family, with the size that is best at 30 tokens within a factor: no prompt beats the optimum.
    tokens, query, target = uneven.sample(20_000, 30, np.random.default_rng(1))
    best = exchanged.saddle(problem=uneven, lengths=[30], seed=0).table["risk"].item()
    losses = {}
    for nu in (0.1, 0.2, 0.3, 0.45):
        p = softmax(nu * tokens[..., -1] * query[:, :1], axis=1)
        m = np.vecdot(p, tokens[..., 0])
        xi = (m @ target) / (m @ m)
        losses[nu] = ((xi * m - target) ** 2 / 2).mean()
    assert min(losses.values()) == pytest.approx(best, rel=0.05)  # its standard error is about 1.5 %
    assert losses[0.1] > 1.05 * best


def test_descent_from_near_the_best_head_ends_there(uneven):
    best = best_softmax(uneven, 20)
    start = exchanged.Head.of_block(best.A, best.b)
    start = exchanged.Head(start.U + 0.05, start.v - 0.05)
    end = exchanged.descend(uneven, start, 20, seed=1)
    exact = uneven.risk_and_gradient("softmax", *best, 20)[0]
    (risk,), _ = head_risks(uneven, "softmax", end.U[None], end.v[None], 20, 2**14, np.random.default_rng(0))
    assert risk == pytest.approx(exact, rel=0.01)


def test_relative_risks_cover_themselves_and_nothing_of_nothing(uneven):
    head = exchanged.Exchanged(uneven, 0.2, 1.5).head
    same = exchanged.relative_risks(uneven, [head, head], head, 20, seed=0)
    assert same.values == pytest.approx([1, 1])
    assert exchanged.relative_risks(uneven, [], head, 20, seed=0).estimate((0.9, 1.1)).cases == 0


def test_runs_are_told_apart_and_end_where_the_risk_leads(uneven):
    found = random_starts.random_starts(
        problem=uneven, length=20, step_size=0.04, n_steps=300, starts=8, batch=64, seed=0
    )
    ends = found.table.groupby("run").last()
    assert len(ends) == 8 and set(ends["reads"]) <= {"x", "y"}
    assert (ends["end"] < 1.02 * ends["risk"]).all() and (ends["end"] > 0.98 * ends["best"]).all()
    level = ends.iloc[0]
    assert level["best"] < level["mixed"] < level["exchanged"]
    reading_y = ends[ends["reads"] == "y"]
    assert found["y"].measured.values == pytest.approx(reading_y["end"] / level["best"], rel=0.01)
    assert (found["y"].near_miss.values < found["y"].measured.values).all()
    assert len(found["x"].measured.values) == 8 - len(reading_y)
