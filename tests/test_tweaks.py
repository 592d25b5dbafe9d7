"""Odd parameters, as people try them: refused in one line before anything is computed, or answered.

`make fuzz` tries 200 of them at random; these have gone wrong once.
"""

import random

import pytest
from fuzz import TINY, run, tasks, tweaks

TASKS = tasks()
REFUSED = [
    ("01", {"covariances": ["2 * rank(100)"]}),
    ("01", {"line_covariance": "rank(5)"}),
    ("01", {"layer_length": 5}),
    ("01", {"shrinkage_deviations": [1e-300]}),
    ("02", {"bound_sigmas": [0.5, 1.0, 2.0]}),
    ("02", {"atlas_lengths": [1e40]}),
    ("03", {"setting": ["rank(2)", 4]}),
    ("03", {"noise_std": 1000}),
    ("03", {"alpha": 1e-6}),
    ("03", {"token_steps": 1}),
    ("04", {"covariances": ["rank(2)"]}),
    ("04", {"task_variance": 1e-9}),
    ("05", {"prompt_lengths": [1]}),
    ("05", {"retrieval_lengths": [1]}),
    ("05", {"choice_lengths": [1, 16]}),
    ("05", {"projection_lengths": [50]}),
    ("05", {"swap_length": 97}),
    ("05", {"features": 1}),
    ("05", {"squared_norms": [1e6]}),
    ("05", {"choice_deviations": [40.0]}),
    ("05", {"retrieval_margin": 40.0}),
    ("05", {"kernel_draws": 1}),
    ("05", {"projection_prompts": 1}),
    ("06", {"causal_length": 1}),
    ("06", {"causal_coupling": 0.25}),
    ("06", {"few_shot_risks": [1e-6]}),
    ("06", {"prompt_tolerances": [1e-6]}),
    ("07", {"covariances": ["rank(2)"]}),
    ("07", {"dimension": 1}),
    ("07", {"noise_seeds": 3}),
    ("07", {"alpha": 100}),
    ("03", {"long_step_size": 2.5}),
    ("04", {"task_variance": 100.0}),
    ("05", {"key_variances": [1e-9]}),
    ("07", {"range_lengths": [1]}),
    ("07", {"noise_step_size": 0.99}),
    ("07", {"gain_lengths": [1]}),
    ("07", {"alpha": 0.03}),
    ("04", {"sgd_step_size": 0.99}),
    ("04", {"shift_prompts": 1}),
    ("03", {"sgd_step_size": 0.1}),
]
ANSWERED = [
    ("01", {"covariances": ["isotropic", "isotropic"], "dimensions": [3, 1, 3]}),
    ("02", {"settings": [["isotropic", 4], ["isotropic", 4]]}),
    ("02", {"prompt_lengths": [16, 16]}),
    ("02", {"couplings": [4.0, 0.1, 0.1], "atlas_lengths": [1e8]}),
    ("02", {"number_budget": 1, "coordinates": 1}),
    ("04", {"critical_dimensions": [6, 1, 1], "experiment_correlation": 0.0}),
    ("07", {"covariances": ["isotropic", "isotropic"]}),
]


@pytest.mark.parametrize(("number", "tweak"), REFUSED)
def test_what_cannot_be_answered_is_refused(number, tweak):
    end = run(TASKS[number], tweak, 60)
    assert end.how == "refused", end
    lines = end.said.splitlines()
    assert all(line.startswith("here: ") for line in lines) and any(next(iter(tweak)) in line for line in lines)


@pytest.mark.parametrize(("number", "tweak"), ANSWERED)
def test_what_is_odd_but_legal_is_answered(number, tweak):
    end = run(TASKS[number], TINY[number] | tweak, 240)
    assert end.good and end.how == "done", end
    assert "NOT JUDGED" not in end.verdicts.values()


def test_a_step_that_another_parameter_makes_too_large_is_named():
    end = run(TASKS["04"], {"experiment_correlation": 0.99}, 60)
    assert end.how == "refused" and "sgd_step_size: at most half the stable step" in end.said, end
    assert "received 0.05, allowed for this covariance are steps up to 0.00018" in end.said


def test_where_every_length_rounds_to_one_nothing_has_frozen():
    end = run(TASKS["02"], TINY["02"] | {"deviations": [1.0]}, 240)
    assert end.good and end.how == "done" and "NOT JUDGED" not in end.verdicts.values(), end
    assert end.verdicts["freezing"] != "PASS"


@pytest.mark.parametrize("number", ["01", "02"])
def test_two_more_tweaks_of_the_fastest_notebooks(number):
    """Drawn from all of `make fuzz`, by a fixed seed."""
    drawn = random.Random(5).sample(tweaks(TASKS[number], TINY[number]), 2)
    for tweak in drawn:
        end = run(TASKS[number], TINY[number] | tweak, 240)
        assert end.good, (tweak, end)
