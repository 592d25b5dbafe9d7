"""Exact finite-prompt theory of softmax attention on Gaussian tokens, and beyond: one place to import it from.

    weight_moments  the two functions of (s, L) that decide the error of softmax weights, and every other moment of them
    one_query       output and gradient errors at one query, sharp constants, the mean output, an exact sampler
    over_queries    the same averaged over Gaussian queries, the coupling and the rate exponent
    sign_pair       two heads of opposite sign, and what they cancel
    needed_length   how many tokens a tolerance needs, and the tolerance that a prompt length reaches
    drift           how far the output moves when the prompt grows
    head_file       attention heads from a file
    empirical       independent tokens of any law: a list of tokens with weights
    any_measure     independent tokens of a measure, Gaussian or not
    coordinate_law  those with independent coordinates, by their moments
    deviation       the distance from the linear map, split into its causes
    dependent       Markov and AR(1) prompts

May use: lib.tokens, lib.prompts.

>>> import numpy as np
>>> from lib.finite_prompt import output_error
>>> output_error(np.eye(3), query=[1.0, 0, 0], U=np.eye(3), V=np.eye(3), length=[1, 100]).round(4)
array([4.    , 0.0977])
"""

from lib.finite_prompt.any_measure import measure_error
from lib.finite_prompt.dependent import (
    ar1_output_error,
    bigram_transition,
    long_run_error,
    markov_long_run_error,
    markov_output_error,
)
from lib.finite_prompt.deviation import Deviation, measure_deviation, tokens_deviation
from lib.finite_prompt.drift import drift_bound, mean_output_drift, output_drift
from lib.finite_prompt.empirical import tokens_error, tokens_output_error
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
    decades,
    local_slope,
    mean_output_error,
    mean_score_gradient_error,
    mean_sharp_constant,
    mean_value_gradient_error,
    rate_exponent,
    slopes_over_decades,
)
from lib.finite_prompt.score_law import Average
from lib.finite_prompt.sign_pair import pair_functionals, pair_output_error, pair_sharp_constant
from lib.finite_prompt.weight_moments import SoftmaxFunctionals, expected_products, softmax_functionals

__all__ = [
    "Average",
    "Deviation",
    "SoftmaxFunctionals",
    "ar1_output_error",
    "bigram_transition",
    "coupling",
    "decades",
    "drift_bound",
    "expected_products",
    "local_slope",
    "long_run_error",
    "markov_long_run_error",
    "markov_output_error",
    "mean_output",
    "mean_output_drift",
    "mean_output_error",
    "mean_score_gradient_error",
    "mean_sharp_constant",
    "mean_value_gradient_error",
    "measure_deviation",
    "measure_error",
    "output_drift",
    "output_error",
    "pair_functionals",
    "pair_output_error",
    "pair_sharp_constant",
    "prompt_length_for",
    "rate_exponent",
    "sample_outputs",
    "score_deviation",
    "score_gradient_error",
    "sharp_constant",
    "slopes_over_decades",
    "softmax_functionals",
    "tokens_deviation",
    "tokens_error",
    "tokens_output_error",
    "tolerance_reached",
    "value_gradient_error",
]
