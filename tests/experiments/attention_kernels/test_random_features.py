import numpy as np
import pytest

from lib.experiments.attention_kernels import random_features
from lib.experiments.attention_kernels.random_features import best_key_variance, isotropic_constant


def test_kernel_values():
    found = random_features.kernel_values(squared_norms=[0.25, 1.0], features=6, dim=6, draws=20_000, seed=0)
    assert list(found.parts) == ["independent", "orthogonal", "saving"]
    for kind in ("independent", "orthogonal"):
        assert 0.95 < found[kind].pooled().measured.value < 1.05
    assert found["independent"].pooled().near_miss.value == pytest.approx(
        found["independent"].pooled().measured.value * 5 / 6
    )
    saving = found["saving"]
    assert saving.measured.value == pytest.approx(1, abs=0.15)
    assert saving.control.value == pytest.approx(0, abs=0.15)
    assert saving.near_miss.value < 0.95 * saving.measured.value
    assert len(found.table) == 4


def test_the_best_split_pays_the_exponential():
    """Whatever the split, the constant exceeds e^{8 s^2} times a polynomial; keys of variance 1 are too much."""
    for s in (0.1, 0.5, 1.0):
        best = best_key_variance(s, 8)
        constant = isotropic_constant(s, best, 8)
        assert constant > np.exp(8 * s**2) * 8 * best
        for other in (0.5 * best, min(2 * best, 0.9)):
            assert isotropic_constant(s, other, 8) > constant
    assert isotropic_constant(0.1, 1.0, 8) == np.inf


def test_features_needed_grow_with_the_scores():
    table = random_features.features_needed(deviations=[0.5, 1.0], dim=8, tolerance=0.1).table
    assert table["features"].is_monotonic_increasing
    first = table.iloc[0]
    assert first["features"] == pytest.approx(400 * isotropic_constant(0.5, first["key_variance"], 8), rel=1e-12)


def test_splits():
    small = {"length": 512, "features": 256, "draws": 40, "seed": 0}
    found = random_features.splits(s=0.2, dim=4, variances=[0.1, 0.2], **small)
    assert 0.75 < found.pooled().measured.value < 1.25
    assert found.pooled().control.value < 0.3
    assert found.table["limit"].is_monotonic_increasing
