"""Causal self-attention, where the token at position L sees L tokens, against prompts of L tokens."""

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator
from scipy.special import softmax

from lib.finite_prompt import mean_output_error
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.streams import stream

INTERPOLATED_FROM = 40  # lengths, log-spaced: the exact error between them is within 1e-5
FIRST_OCTAVE = 2  # judged: positions from 4 on


def prefixes(*, dim: int, coupling: float, length: int, sequences: int, seed: int) -> Comparison:
    """Squared deviations of causal self-attention, averaged over octaves of positions, over those of prompts.

    White tokens. A random head, and one whose tokens attend to themselves, U = sqrt(lambda) I. Read as a prompt, a
    prefix neglects that the query's own token is among the keys.

    Args:
        dim: dimension d.
        coupling: lambda of both heads.
        length: tokens a sequence; only whole octaves of them are shown.
        sequences: how many of them.
        seed: of heads and sequences.

    Returns:
        A row a head and octave: head, position, measured, low, high, exact (mean squared deviations).
        measured: the random head's curve over the exact one, from position 4 on. control: the self-attending head's.
    """
    random_U, V = stream(seed, "causal").standard_normal((2, dim, dim)) / np.sqrt(dim)
    directions = {"random head": random_U / np.linalg.norm(random_U, 2), "self-attending head": np.eye(dim)}
    positions = np.arange(1, length + 1)
    starts = 2 ** np.arange(int(np.log2(length + 1)))
    octaves = [(positions >= start) & (positions < 2 * start) for start in starts]
    tables, judged = [], []
    for name, direction in directions.items():
        U, rng = np.sqrt(coupling) * direction, stream(seed, "causal", name)
        exact = _as_prompts(U, V, positions)
        errors = np.array([causal_errors(rng.standard_normal((length, dim)), U, V) for _ in range(sequences)])
        curve = Curve.from_samples([(errors / exact)[:, octave].mean(1) for octave in octaves], rng)
        middle = np.array([exact[octave].mean() for octave in octaves])
        columns = {key: values * middle for key, values in curve.columns().items()}
        tables.append(pd.DataFrame({"head": name, "position": np.sqrt(2) * starts, **columns, "exact": middle}))
        judged.append(curve.at(slice(FIRST_OCTAVE, None)))
    return Comparison(pd.concat(tables, ignore_index=True), *judged)


def _as_prompts(U: np.ndarray, V: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """E|T_L - T|^2 over white queries, with the positions as lengths, interpolated on logarithmic scales."""
    some, eye = np.unique(np.round(np.geomspace(1, positions[-1], INTERPOLATED_FROM))), np.eye(len(U))
    errors = mean_output_error(eye, eye, U, V, some).value
    return np.exp(PchipInterpolator(np.log(some), np.log(errors))(np.log(positions)))


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
