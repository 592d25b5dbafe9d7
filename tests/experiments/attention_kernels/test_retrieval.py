import pytest

from lib.experiments.attention_kernels import retrieval


def test_softmax_finds_the_relevant_token_and_moment_attention_does_not():
    found = retrieval.risks(margin=1.5, lengths=[16, 128], features=32, n_prompts=4000, seed=0)
    assert 0.92 < found.pooled().measured.value < 1.08
    assert found.pooled().control.value > 1.5
    assert found["lost"].measured.mean > 0.85
    assert found["lost"].control.mean < 0.3
    table = found.table
    assert table[table["kernel"].str.startswith("Performer")]["exact"].isna().all()
    assert table[table["kernel"].isin(["softmax", "best affine"])]["exact"].notna().all()


def test_needed_strengths():
    found = retrieval.needed_strengths(lengths=[1e2, 1e9, 1e12])
    table = found.table
    assert found.measured.value == table["slope"].iloc[-1] == pytest.approx(2, abs=0.01)
    assert found.control.value > 1e9
    assert (table["affine"] / table["length"]).to_numpy() == pytest.approx(1, abs=0.02)
