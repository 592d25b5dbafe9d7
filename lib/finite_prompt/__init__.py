"""Exact finite-prompt theory of softmax attention on Gaussian tokens: one place to import it from.

    functionals    y(s, L) and v(s, L), the two functions that decide the error of softmax weights
    fixed_query    output and gradient errors at one query, sharp constants, the mean output, an exact sampler
    query_average  the same averaged over Gaussian queries, the coupling and the rate exponent
    prompt_length  how many tokens a tolerance needs, and the tolerance that a prompt length reaches
    drift          how far the output moves when the prompt grows

>>> import numpy as np
>>> from lib.finite_prompt import output_error
>>> output_error(np.eye(3), query=[1.0, 0, 0], U=np.eye(3), V=np.eye(3), length=[1, 100]).round(4)
array([4.    , 0.0977])
"""

from lib.finite_prompt.drift import drift_bound, mean_output_drift, output_drift
from lib.finite_prompt.needed_length import prompt_length_for, tolerance_reached
from lib.finite_prompt.one_query import (
    mean_output,
    output_error,
    sample_outputs,
    score_deviation,
    score_gradient_error,
    sharp_constant,
    value_gradient_error,
)
from lib.finite_prompt.over_queries import (
    coupling,
    local_slope,
    mean_output_error,
    mean_score_gradient_error,
    mean_sharp_constant,
    mean_value_gradient_error,
    rate_exponent,
)
from lib.finite_prompt.score_law import Average
from lib.finite_prompt.weight_moments import SoftmaxFunctionals, expected_products, softmax_functionals

__all__ = [
    "Average",
    "SoftmaxFunctionals",
    "coupling",
    "drift_bound",
    "local_slope",
    "mean_output",
    "mean_output_drift",
    "mean_output_error",
    "mean_score_gradient_error",
    "mean_sharp_constant",
    "mean_value_gradient_error",
    "output_drift",
    "output_error",
    "prompt_length_for",
    "rate_exponent",
    "sample_outputs",
    "score_deviation",
    "score_gradient_error",
    "sharp_constant",
    "softmax_functionals",
    "tolerance_reached",
    "value_gradient_error",
    "expected_products",
]
