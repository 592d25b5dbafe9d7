"""Premises: conditions that several parameters of a notebook must meet together, checked before anything is computed.

A cell tagged ``premises`` right after the results cell holds nothing but lines such as

    results.require(max(prompt_lengths) > 2, "prompt_lengths: one of more than two tokens")

In a running notebook they are checked as any other line. The runner reads the same cell and checks it before a kernel
starts, and ``--describe`` shows what it asks for. A condition is made of parameters, builtins and the words below.
"""

import ast
import builtins
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lib.notebook.parameters import ParameterError

__all__ = ["definite", "fits", "multiples", "slow_enough"]


@dataclass(frozen=True)
class Premise:
    """A condition as it is written, what it asks for in words, and the names in it."""

    condition: str
    text: str
    names: tuple[str, ...]

    def broken(self, parameters: dict[str, Any]) -> str:
        """One line that says what is asked for and what was given, or nothing if the premise holds."""
        words = {**vars(builtins), **{name: globals()[name] for name in __all__}, **parameters}
        try:
            if eval(self.condition, {"__builtins__": {}, **words}):  # the notebook's text, which runs anyway
                return ""
        except (ArithmeticError, ValueError, IndexError) as error:
            return f"{self.text}; {' '.join(str(error).split())}"
        given = ", ".join(f"{name} = {parameters[name]!r}" for name in self.names if name in parameters)
        return f"{self.text}; received {given}"


def read_premises(source: str) -> list[Premise]:
    """The premises that a cell holds.

    Raises:
        ParameterError: one line for the first statement that is anything else.
    """
    found = []
    for statement in ast.parse(source).body:
        match statement:
            case ast.Expr(
                ast.Call(ast.Attribute(ast.Name("results"), "require"), [condition, ast.Constant(str(text))], [])
            ):
                names = dict.fromkeys(node.id for node in ast.walk(condition) if isinstance(node, ast.Name))
                found.append(Premise(ast.unparse(condition), text, tuple(names)))
            case _:
                raise ParameterError(
                    f"line {statement.lineno} of the premises cell must read `results.require(condition, text)`"
                )
    return found


def fits(covariances: Iterable, dimensions: Iterable[int]) -> bool:
    """Whether every covariance can be made in every dimension, as rank(3) cannot in two."""
    from lib.tokens.covariances import covariance_fits  # here: the runner's help must not cost the import of numpy

    return all(covariance_fits(*pair) for pair in itertools.product(covariances, dimensions))


def definite(covariances: Iterable, dimensions: Iterable[int]) -> bool:
    """Whether every covariance is positive definite in every dimension, with a condition number of at most 1e10."""
    from lib.tokens.covariances import covariance_is_definite  # here: as above

    return all(covariance_is_definite(*pair) for pair in itertools.product(covariances, dimensions))


def multiples(numbers: Iterable[int], of: int) -> bool:
    """Whether all numbers are multiples of one."""
    return all(number % of == 0 for number in numbers)


def slow_enough(step_size: float, covariance, dimension: int, noise_std: float, task_variance: float = 1.0) -> bool:
    """Whether stochastic descent ends at the optimum of a regression: at most half the largest stable step of descent.

    Raises:
        ValueError: naming the largest step, if not.
    """
    from lib.regression.hessian import infinite_hessian, stable_step  # here: as above
    from lib.regression.task import InContextRegression
    from lib.tokens.covariances import covariance_matrix

    problem = InContextRegression(covariance_matrix(covariance, dimension), noise_std, task_variance)
    largest = stable_step(infinite_hessian(problem, problem.optimum())) / 2
    if step_size > largest:
        raise ValueError(f"received {step_size:g}, allowed for this covariance are steps up to {largest:.2g}")
    return True
