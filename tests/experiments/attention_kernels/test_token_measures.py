from lib.experiments.attention_kernels import token_measures


def test_only_centered_tokens_suit_linear_attention():
    found = token_measures.not_centered(dim=4, s=0.7, lengths=[16, 256], number_budget=500_000, seed=0)
    assert 0.97 < found.pooled().measured.value < 1.03
    assert found.pooled().control.value > 2
    assert found.near_miss.mean[0] > 1.01 * found.measured.mean[0]
    measured = found.table.set_index("kernel")["measured"]
    linear, moment = (measured[f"{name} attention"].to_numpy() for name in ("linear", "moment"))
    assert linear[1] > 0.5 * linear[0]
    assert moment[1] < 0.1 * moment[0]


def test_only_gaussian_tokens_have_no_floor():
    found = token_measures.not_gaussian(dim=4, s=1.0, lengths=[16, 1024], number_budget=500_000, seed=0)
    assert 0.9 < found.pooled().measured.value < 1.1
    assert found.pooled().control.value > 5
    last = found.table[found.table["length"] == 1024].set_index("tokens")["measured"]
    assert last.idxmin() == "Gaussian"
    assert last.idxmax() == "Rademacher"
