import pytest

from lib.experiments.attention_kernels import retrieval


def test_softmax_finds_the_relevant_token_and_moment_attention_does_not():
    found = retrieval.risks(margin=1.5, lengths=[16, 128], features=32, n_prompts=4000, seed=0)
    assert 0.92 < found.pooled().measured.value < 1.08
    assert found.pooled().control.value > 1.5
    assert 0.7 < found.pooled().near_miss.value < 0.9
    table = found.table
    assert table[table["kernel"].str.startswith("Performer")]["exact"].isna().all()
    assert table[table["kernel"].isin(["softmax", "best affine"])]["exact"].notna().all()


def test_the_gain_of_moment_attention_from_its_weights():
    found = retrieval.gains(margin=1.5, lengths=[16, 128], n_prompts=4000, seed=0)
    assert 0.95 < found.pooled().measured.value < 1.05
    assert found.pooled().near_miss.value > 1.02 * found.pooled().measured.value
    assert found.pooled().control.value > 2
    risks = retrieval.risks(margin=1.5, lengths=[16, 128], features=32, n_prompts=4000, seed=0).table
    measured = risks[risks["kernel"] == "moment"]["measured"].to_numpy()
    assert 1 - found.table["measured"].to_numpy() == pytest.approx(measured, abs=0.06)


def test_needed_strengths():
    found = retrieval.needed_strengths(lengths=[1e2, 1e9, 1e12])
    table = found.table
    assert found.measured.value == table["slope"].iloc[-1] == pytest.approx(2, abs=0.01)
    assert found.control.value > 1e9
    assert 1.95 < found.near_miss.value < 1.98
    assert (table["affine"] / table["length"]).to_numpy() == pytest.approx(1, abs=0.02)
