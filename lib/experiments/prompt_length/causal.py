"""Causal self-attention, where the token at position L sees L tokens and is one of them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator
from scipy.special import softmax

from lib.experiments.prompt_length.own_token import mean_error, mean_error_of_scaled_identity
from lib.finite_prompt import mean_output_error
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.streams import stream

INTERPOLATED_FROM = 40  # lengths, log-spaced: the exact error between them is within 1e-5
FIRST_OCTAVE = 2  # judged: positions from the first of this octave on
FIRST_POSITION = 2**FIRST_OCTAVE
SELF_ATTENDING = "self-attending head"


def prefixes(*, dim: int, coupling: float, length: int, sequences: int, seed: int) -> Comparison:
    """Squared deviations of causal self-attention, averaged over octaves of positions, over the exact ones.

    White tokens. A random head, and one whose tokens attend to themselves, U = sqrt(lambda) I. The exact ones know that
    the query is one of the tokens (:mod:`lib.experiments.prompt_length.own_token`); read as a prompt, a prefix neglects
    it.

    Args:
        dim: dimension d.
        coupling: lambda of both heads.
        length: tokens a sequence; only whole octaves of them are shown.
        sequences: how many of them.
        seed: of heads and sequences.

    Returns:
        A row a head and octave: head, position, measured, low, high, exact, prompt (mean squared deviations; the last
        as if the query were no token of the prompt).
        measured: the curve over the exact one, both heads, from position 4 on. control: over that of a prompt. near
        miss: over the exact one with the own token beside L others instead of L - 1.
    """
    random_U, V = stream(seed, "causal").standard_normal((2, dim, dim)) / np.sqrt(dim)
    heads = {"random head": random_U / np.linalg.norm(random_U, 2), SELF_ATTENDING: np.eye(dim)}
    starts = 2 ** np.arange(int(np.log2(length + 1)))
    parts = {}
    for name, direction in heads.items():
        U, rng = np.sqrt(coupling) * direction, stream(seed, "causal", name)
        errors = np.array([causal_errors(rng.standard_normal((length, dim)), U, V) for _ in range(sequences)])
        exact, later, prompt = (_over_octaves(mean, starts) for mean in _exact(U, V, length, name))
        means = [errors[:, start - 1 : 2 * start - 1].mean(1) for start in starts]
        curve = Curve.from_samples(means, rng)
        columns = {"head": name, "position": np.sqrt(2) * starts}
        table = pd.DataFrame({**columns, **curve.columns(), "exact": exact, "prompt": prompt})
        judged = slice(FIRST_OCTAVE, None)
        sides = [(curve / means).at(judged) for means in (exact, prompt, later)]
        parts[name] = Comparison(table, *sides[:2], near_miss=sides[2])
    return Comparison.together(parts)


def pooled(found: Comparison) -> Comparison:
    """The means of :func:`prefixes` over its octaves, which count alike, of both heads.

    Returns:
        measured and near miss: of both heads. control: the self-attending head over the exact deviation of the random
        one. A prompt without the query would be no control: its errors early and late nearly cancel in the mean.
    """
    exact = {head: rows["exact"].to_numpy()[FIRST_OCTAVE:] for head, rows in found.table.groupby("head")}
    alone = found[SELF_ATTENDING].measured / (exact["random head"] / exact[SELF_ATTENDING])
    return replace(found.pooled(), control=alone.pooled())


def _exact(U: np.ndarray, V: np.ndarray, length: int, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean squared deviations at positions 1 to length: exact, one position later, and of prompts without the query."""
    some = np.unique(np.round(np.geomspace(1, length + 1, INTERPOLATED_FROM)))
    own = mean_error_of_scaled_identity(U[0, 0], V, some) if name == "self-attending head" else mean_error(U, V, some)
    positions, eye = np.arange(1, length + 1), np.eye(len(U))
    own, prompt = (_interpolated(some, x) for x in (own, mean_output_error(eye, eye, U, V, some).value))
    return own(positions), own(positions + 1), prompt(positions)


def _interpolated(positions: np.ndarray, errors: np.ndarray) -> Callable:
    """On logarithmic scales."""
    of_log = PchipInterpolator(np.log(positions), np.log(errors))
    return lambda x: np.exp(of_log(np.log(x)))


def _over_octaves(errors: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Means over the positions from each start to just below its double."""
    return np.array([errors[start - 1 : 2 * start - 1].mean() for start in starts])


def causal_errors(x: np.ndarray, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Squared distance of causal self-attention from its limit V U x_i on white tokens, at each position i.

    Args:
        x: tokens, shape (L, d).
        U, V: the head, shape (d, d).

    Returns:
        Shape (L,).
    """
    scores = x @ U.T @ x.T
    scores[np.triu_indices(len(x), 1)] = -np.inf
    return (((softmax(scores, axis=1) @ x - x @ U.T) @ V.T) ** 2).sum(1)
