"""How long a run may take, from the parameters that cost: whose help says `costs in proportion` or `its square`."""

import math
from typing import Any

from lib.runner.params import Task
from lib.runner.report import clock

LONG = 3600.0  # seconds, from which on a run is asked for twice


def factors(task: Task) -> dict[str, float]:
    """By how much more a notebook costs than with its preset, at most: the factors above 1, by parameter."""
    found = {}
    for key, value in task.overrides.items():
        text, before = task.notebook.parameters[key].help, task.preset[key]
        if "costs" in text and size(before) > 0:
            ratio = (size(value) / size(before)) ** (2 if "its square" in text else 1)
            found |= {key: ratio} if ratio > 1 else {}
    return found


def size(value: Any) -> float:
    """What a cost is in proportion to: a number, or the sum of several; of other entries their number."""
    if isinstance(value, list):
        return float(sum(x if isinstance(x, int | float) else 1 for x in value))
    return float(value) if isinstance(value, int | float) else 1.0


def longest(tasks: list[Task], seconds: dict[str, float]) -> dict[str, float]:
    """Seconds that notebooks may take at most, those alone whose parameters cost more than their preset's.

    Args:
        seconds: how long they took with the preset; one that is missing is not told.
    """
    more = {task.name: math.prod(factors(task).values()) for task in tasks if task.name in seconds}
    return {name: factor * seconds[name] for name, factor in more.items() if factor > 1}


def told(tasks: list[Task], seconds: dict[str, float]) -> list[str]:
    """A line for each notebook that may take longer than with its preset."""
    reasons = {task.name: ", ".join(f"{key} × {x:.3g}" for key, x in factors(task).items()) for task in tasks}
    return [f"{name}: up to {clock(time)}, as {reasons[name]}" for name, time in longest(tasks, seconds).items()]
