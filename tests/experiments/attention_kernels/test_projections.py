import pytest

from lib.experiments.attention_kernels import projections


def test_fixed_projections_do_not_improve_with_the_prompt():
    found = projections.fixed(s=0.7, dim=3, rows=8, lengths=[16, 256], n_prompts=150, seed=0)
    assert 0.9 < found.pooled().measured.value < 1.1
    assert found.pooled().control.value > 3
    assert len(found.measured.mean) == 4 * 2
    assert len(found.table) == 5 * 2
    improvement = found.table.groupby("projection")["measured"].agg(lambda x: x.iloc[-1] / x.iloc[0])
    assert improvement.idxmin() == projections.ITSELF
    assert improvement.nsmallest(2).iloc[1] > 0.5


def test_learned_projections():
    found = projections.learned(s=0.7, dim=3, rows=4, length=16, steps=400, replicates=2, seed=0)
    table = found.table
    assert (table["learned"] / table["floor"]).between(0.9, 1.2).all()
    assert (table["start"] > 2 * table["floor"]).all()
    assert (table["truncated"] > 1.2 * table["learned"]).all()
    assert found.measured.value == pytest.approx((table["learned"] / table["floor"]).mean())
    assert found.control.value == pytest.approx((table["start"] / table["floor"]).mean())
