"""The experiments of notebook 05 at tiny size: what they must and must not find."""

import numpy as np
import pytest

from lib.experiments.attention_kernels import approximations as kernel_approximations
from lib.experiments.attention_kernels import choice as kernel_choice
from lib.experiments.attention_kernels import moments as attention_kernels
from lib.experiments.attention_kernels import tasks as kernel_tasks
from lib.kernels import LinearAttention, MomentAttention, Performer, Softmax
from lib.notebook import figures
from lib.regression.task import InContextRegression

DISTANCES = attention_kernels.DISTANCES


def test_measured_distances_lie_on_the_exact_ones():
    found = attention_kernels.MomentErrors(
        [("isotropic", 4), ("rank(2)", 3)], [0.5, 1.2], [16, 64], 1_000_000, 20_000, seed=0
    )
    for distance in DISTANCES:
        assert 0.93 < found.ratios[distance].pooled().value < 1.07
        assert len(found.ratios[distance].mean) == 4
    assert found.wrong["moment to softmax"].pooled().value < 0.5
    assert found.wrong["moment to limit"].pooled().value < 0.95
    assert set(found.table["distance"]) == set(DISTANCES)
    with pytest.raises(ValueError, match="prompt lengths must be 2 or more"):
        attention_kernels.MomentErrors([("isotropic", 4)], [0.5], [1, 4], 1000, 1000, seed=0)


def test_closer_on_long_prompts_only():
    long_prompts = attention_kernels.closer_to_limit([0.1, 1.0, 6.0], [6, 60, 6e6], [1, 8, 4096])
    assert long_prompts["ratio"].max() < 1
    assert attention_kernels.closer_to_limit([1.0, 3.0], [0.5], [8])["ratio"].max() > 1.2


def test_only_centered_tokens_suit_linear_attention():
    table, ratio, centered = attention_kernels.centering(4, 0.7, [16, 256], 500_000, seed=0)
    assert 0.97 < ratio.pooled().value < 1.03
    assert centered.pooled().value > 3
    linear, moment = (table[table["kernel"] == f"{x} attention"]["measured"].to_numpy() for x in ("linear", "moment"))
    assert linear[1] > 0.5 * linear[0]
    assert moment[1] < 0.1 * moment[0]


def test_only_gaussian_tokens_have_no_floor():
    table, floored, gaussian = attention_kernels.other_measures(4, 1.0, [16, 1024], 500_000, seed=0)
    assert 0.9 < floored.pooled().value < 1.1
    assert gaussian.pooled().value > 5
    last = table[table["length"] == 1024].set_index("tokens")["measured"]
    assert last.idxmin() == "Gaussian"
    assert last.idxmax() == "Rademacher"


def test_kernel_values():
    table, judged = kernel_approximations.kernel_values([0.25, 1.0], 6, 6, 20_000, seed=0)
    for kind in ("independent", "orthogonal"):
        right, wrong = judged[kind]
        assert 0.95 < right.pooled().value < 1.05
        assert abs(np.log(wrong.pooled().value)) > 0.08
    assert len(table) == 4


def test_the_best_split_pays_the_exponential():
    """Whatever the split, the constant exceeds e^{8 s^2} times a polynomial; keys of variance 1 are too much."""
    for s in (0.1, 0.5, 1.0):
        best = kernel_approximations.best_key_variance(s, 8)
        constant = kernel_approximations.isotropic_constant(s, best, 8)
        assert constant > np.exp(8 * s**2) * 8 * best
        for other in (0.5 * best, min(2 * best, 0.9)):
            assert kernel_approximations.isotropic_constant(s, other, 8) > constant
    assert kernel_approximations.isotropic_constant(0.1, 1.0, 8) == np.inf


def test_splits():
    table, ratio, half = kernel_approximations.splits(0.2, 4, [0.1, 0.2], 512, 256, 40, seed=0)
    assert 0.75 < ratio.pooled().value < 1.25
    assert half.pooled().value < 0.3
    assert table["limit"].is_monotonic_increasing


def test_projections_do_not_improve_with_the_prompt():
    table, ratio, softmax = kernel_approximations.projections(0.7, 3, 8, [16, 256], 150, seed=0)
    assert 0.9 < ratio.pooled().value < 1.1
    assert softmax.pooled().value > 3
    improvement = table.groupby("projection")["measured"].agg(lambda x: x.iloc[-1] / x.iloc[0])
    assert improvement.idxmin() == "softmax itself"
    assert improvement.nsmallest(2).iloc[1] > 0.5


def test_learned_projections():
    table = kernel_approximations.learned_projections(0.7, 3, 4, 16, 400, 2, seed=0)
    assert (table["learned"] / table["floor"]).between(0.9, 1.2).all()
    assert (table["start"] > 2 * table["floor"]).all()
    assert (table["half"] > 1.2 * table["learned"]).all()


def test_costs_and_times():
    kernels = {"moment": MomentAttention(), "Performer": Performer(16)}
    table = attention_kernels.costs(kernels, [64, 4096], 8).set_index(["kernel", "length"])
    assert table.loc[("moment", 4096), "operations"] < 0.01
    assert table.loc[("moment", 4096), "state"] == pytest.approx(80 / (4096 * 16))
    assert table.loc[("Performer", 64), "shared"] == 16 * 8
    times = attention_kernels.wall_times({"softmax": Softmax(), "linear": LinearAttention()}, [32], 4)
    assert (times["seconds"] > 0).all()
    assert times.set_index("kernel").loc["softmax", "ratio"] == 1


def test_the_choice_and_its_exact_boundary():
    measures = {k: m for k, m in attention_kernels.unit_measures(4).items() if k in ("Gaussian", "mixture")}
    table = kernel_choice.deviations_from_softmax(measures, [0.1, 3.0], [2, 32, 1024], 64, 200_000, seed=0)
    table = kernel_choice.choose(table, 64, 4, 0.1)
    chosen = table.set_index(["tokens", "length", "s"])["choice"]
    assert chosen["Gaussian", 1024, 0.1] == chosen["mixture", 1024, 0.1] == "moment"
    assert chosen["mixture", 1024, 3.0] == "softmax"
    assert set(table[table["length"] == 2]["choice"]) == {"any"}  # 16 numbers, and moments are 24
    gaussian = table[(table["tokens"] == "Gaussian") & (table["length"] == 32) & (table["s"] == 0.1)]
    exact = float(kernel_choice.exact_deviation(0.1, 32, 4))
    assert gaussian["moment"].item() == pytest.approx(exact, rel=0.15)
    boundary = kernel_choice.boundary([8, 32, 1024], 4, 0.1)
    assert boundary.is_monotonic_increasing
    assert float(kernel_choice.exact_deviation(boundary[1024], 1024, 4)) == pytest.approx(0.1, rel=1e-3)
    figure = kernel_choice.choice_figure(table, boundary, 0.1)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["Gaussian tokens", "mixture tokens"]
    figures.plt.close(figure)


def test_swapped_kernels_have_their_exact_risks():
    problem = InContextRegression(np.eye(3), 0.3)
    table = kernel_tasks.swaps(problem, [32, 1000])
    assert (table["linear"] < table["softmax"]).all()
    assert (table["retrained"] <= table["linear"]).all()
    assert (table["back"] > table["softmax"]).all()
    assert set(kernel_tasks.kernels_at_heads(table)["kernel"]) >= {"softmax, trained", "linear, swapped"}
    prompts = kernel_tasks.SwapsOnPrompts(problem, 32, 8000, 32, 8, 300, seed=0)
    assert 0.9 < prompts.ratio.pooled().value < 1.1
    assert prompts.untrained.pooled().value < 0.9
    risks = prompts.table.set_index("kernel")
    assert risks.loc["linear", "swapped"] < risks.loc["softmax", "swapped"]
    assert risks.loc["moment", "retrained"] < risks.loc["moment", "swapped"]
    learned = risks.loc["Linformer, p = 8, learned"]
    assert 0.7 * learned["predicted"] < learned["swapped"] < 2 * learned["predicted"]


def test_retrieval():
    table, right, wrong, last = kernel_tasks.retrievals(1.5, [16, 128], 32, 4000, seed=0)
    assert 0.92 < right.pooled().value < 1.08
    assert wrong.pooled().value > 1.5
    assert last["moment"].mean > 0.85
    assert last["softmax"].mean < 0.3
    assert table[table["kernel"].str.startswith("Performer")]["exact"].isna().all()


def test_needed_strengths():
    table = kernel_tasks.needed_strengths([1e2, 1e9, 1e12])
    assert table["slope"].iloc[-1] == pytest.approx(2, abs=0.01)
    assert (table["affine"] / table["length"]).to_numpy() == pytest.approx(1, abs=0.02)
