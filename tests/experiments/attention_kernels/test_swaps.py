import numpy as np

from lib.experiments.attention_kernels import swaps
from lib.regression.task import InContextRegression

PROBLEM = InContextRegression(np.eye(3), 0.3)


def test_linear_attention_gains_and_softmax_loses_by_the_swap():
    found = swaps.exact(problem=PROBLEM, lengths=[32, 1000])
    risks = found.table
    assert (risks["linear, swapped"] < risks["softmax, trained"]).all()
    assert (risks["linear, retrained"] <= risks["linear, swapped"]).all()
    assert (risks["softmax, swapped back"] > risks["softmax, trained"]).all()
    assert found.measured.value < 1 < found.control.value


def test_swapped_kernels_have_their_exact_risks():
    small = {"length": 32, "n_prompts": 8000, "features": 32, "rows": 8, "steps": 300}
    found = swaps.on_prompts(problem=PROBLEM, seed=0, **small)
    assert 0.9 < found.pooled().measured.value < 1.1
    assert found.pooled().control.value < 0.9
    risks = found.table.set_index("kernel")
    assert risks.loc["linear", "swapped"] < risks.loc["softmax", "swapped"]
    assert risks.loc["moment", "retrained"] < risks.loc["moment", "swapped"]
    learned = risks.loc["Linformer, p = 8, learned"]
    assert 0.7 * learned["predicted"] < learned["swapped"] < 2 * learned["predicted"]
