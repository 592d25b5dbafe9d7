"""How long a run may take, from the parameters that cost: whose help says `costs in proportion` or `its square`."""

from typing import Any

from lib.runner.params import Task

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
    found = {}
    for task in tasks:
        more = 1.0
        for factor in factors(task).values():
            more *= factor
        if more > 1 and task.name in seconds:
            found[task.name] = more * seconds[task.name]
    return found


def told(tasks: list[Task], seconds: dict[str, float], clock) -> list[str]:
    """A line for each notebook that may take longer than with its preset."""
    most = longest(tasks, seconds)
    reasons = {task.name: ", ".join(f"{key} × {x:.3g}" for key, x in factors(task).items()) for task in tasks}
    return [f"{name}: up to {clock(time)}, as {reasons[name]}" for name, time in most.items()]
