import numpy as np
import pytest

from lib.experiments.attention_kernels import moments
from lib.kernels.exact_errors import moment_error

SMALL = {"number_budget": 1_000_000, "coordinates": 20_000, "seed": 0}


def test_measured_distances_lie_on_the_exact_ones():
    settings, deviations, lengths = [("isotropic", 4), ("rank(2)", 3)], [0.5, 1.2], [16, 64]
    found = moments.distances(settings=settings, deviations=deviations, lengths=lengths, **SMALL)
    assert list(found.parts) == list(moments.DISTANCES)
    for distance in moments.DISTANCES:
        assert 0.93 < found[distance].pooled().measured.value < 1.07
        assert len(found[distance].measured.mean) == len(deviations) * len(lengths)
    assert found["moment to softmax"].pooled().control.value < 0.5
    assert found["moment to limit"].pooled().control.value < 0.95
    assert len(found.table) == 2 * 3 * len(deviations) * len(lengths)
    assert set(found.table["distance"]) == set(moments.DISTANCES)


def test_a_single_token_is_refused():
    with pytest.raises(ValueError, match="prompt lengths must be 2 or more"):
        moments.distances(settings=[("isotropic", 4)], deviations=[0.5], lengths=[1, 4], **SMALL)


def test_closer_on_long_prompts_only():
    grid = {"deviations": [0.1, 1.0, 3.0, 6.0], "dims": [1, 8, 4096]}
    found = moments.closer_to_limit(multiples=[6, 60, 6e6], short_multiple=0.5, **grid)
    assert found.measured.value == found.table["ratio"].max() < 1
    assert found.control.value > 1.2


def test_two_dimensions_stand_for_all():
    direct = moment_error(np.eye(7), np.array([0.8, *np.zeros(6)]), np.eye(7), np.eye(7), [3, 50])
    assert moment_error(*moments.isotropic(7, 0.8), [3, 50]) == pytest.approx(direct, rel=1e-12)
