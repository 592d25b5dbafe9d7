"""Run every notebook with odd but legal parameters and see how it ends: `make fuzz`.

    .venv/bin/python tests/fuzz.py [--only 02 05] [--tweaks 200] [--seed 0] [--jobs 2] [--limit 120]

A tweak changes one parameter of a notebook that is otherwise run with budgets too small to prove anything: the least
and the largest value that its type allows, one entry of a list, the same entry twice, the order reversed. Each must
end in one of two ways: refused in one line that names a parameter, before anything is computed, or with a verdict for
every claim. A traceback, a numpy warning that a reader would see, or a hang is a fault.

The cells run in this process's children, without a kernel: what is tested is the library under the notebooks.
"""

import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lib.notebook.parameters import ParameterError, check_value  # noqa: E402
from lib.runner import params  # noqa: E402

TINY = {  # beside the quick preset: what costs time
    "01": dict(dimensions=[1, 3], shrinkage_budget=20_000, layer_length=40, layer_replicates=2, tilts=1),
    "02": dict(
        number_budget=40_000, average_budget=40_000, settings=[["isotropic", 3], ["rank(2)", 4]],
        prompt_lengths=[16, 64, 256], average_lengths=[16, 64],
    ),
    "03": dict(
        setting=["toeplitz(0.5)", 2], along_budget=20_000, sgd_steps=8, sgd_batch=4, sgd_seeds=2, long_steps=8,
        block_steps=8, starts=2, token_steps=4, token_lengths=[10], horizons=[2.0], along_times=[0.1, 1.0],
    ),
    "04": dict(
        dimension=2, covariances=["toeplitz(0.5)"], prompt_budget=40_000, sgd_steps=8, sgd_batch=4, sgd_seeds=2,
        shift_prompts=200, risk_lengths=[10, 100], experiment_lengths=[10], critical_dimensions=[1, 3],
        driver_steps=4, driver_starts=2,
    ),
    "05": dict(
        number_budget=40_000, coordinates=400, kernel_draws=1000, split_draws=2, split_length=64, projection_prompts=16,
        projection_lengths=[64, 128], learned_steps=4, learned_replicates=2, choice_budget=4000, choice_lengths=[16],
        choice_deviations=[0.5], swap_prompts=64, swap_length=32, retrieval_prompts=64, retrieval_lengths=[16, 64],
        features=16, long_lengths=[16, 64], settings=[["isotropic", 3], ["rank(2)", 4]], prompt_lengths=[8, 32],
        task_dimension=2,
    ),
    "06": dict(
        number_budget=40_000, prompts_at_most=20, drift_budget=40_000, causal_sequences=4, rounding_queries=4,
        few_shot_budget=100_000, causal_length=31, head_lengths=[16, 128], few_shot_dimensions=[2],
        few_shot_risks=[0.3], chart_points=4, dimensions=[1, 4], settings=[["isotropic", 2]], tolerances=[0.3, 0.2],
    ),
    "07": dict(
        dimension=2, edge_steps=20, most_steps=20, race_lengths=[20], sgd_batch=16, sgd_seeds=2, gain_budget=20_000,
        mean_prompts=100, noise_steps=10, noise_batch=8, noise_seeds=10, noise_prompts=100, gain_lengths=[10, 20],
        pilot_dimension=2, pilot_covariances=["isotropic"],
    ),
    "08": dict(
        number_budget=40_000, growth_lengths=[100, 1000], growth_prompts=4, correlations=[-0.5, 0.5],
        chart_correlations=[0.0], chart_deviations=[0.5], memory_lengths=[64], dimension_list=[1, 4],
        query_dimensions=[4, 64], stack_length=16, stack_runs=4, layer_prompts=200, crossing_sizes=[0.1, 0.4],
        prompt_lengths=[8, 32], pair_scales=[0.1, 0.4],
    ),
}  # fmt: skip
COSTLY = re.compile(  # of a name and its type: the largest values ask for days
    r"budget|prompts|draws|steps|seeds|batch|features|replicates|starts|sequences|queries|coordinates"
    r"|tilts|rows|points|length|dimension|Length|most"
)


@dataclass
class End:
    """How a run ended: "refused", "done", "error" or "hang"; what was said; verdicts by claim; warnings."""

    how: str
    said: str = ""
    verdicts: dict[str, str] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return (self.how == "done" and not self.warned) or self.how == "refused"


def tasks() -> dict[str, params.Task]:
    """The notebooks with their quick parameters, by number."""
    return {task.name[:2]: task for task in params.plan(ROOT, "quick")}


def tweaks(task: params.Task, tiny: dict[str, Any]) -> list[dict[str, Any]]:
    """All single changes of a notebook's parameters that its types allow."""
    found = []
    for key, parameter in task.notebook.parameters.items():
        value = tiny.get(key, task.parameters[key])
        for tried in [*_lists(value), *_bounds(key, parameter, value)]:
            with contextlib.suppress(ParameterError):
                check_value(parameter, tried)
                if tried != value and {key: tried} not in found:
                    found.append({key: tried})
    return found


def _lists(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return []
    return [value[:1], value[-1:], [value[0], value[0]], value[::-1], [*value, value[0]]]


def _bounds(key: str, parameter, value: Any) -> list[Any]:
    """The ends of the range of numbers, and far from the value inside it."""
    one = value[0] if isinstance(value, list) else value
    if isinstance(one, bool) or not isinstance(one, int | float):
        return []
    whole = isinstance(one, int)
    tried = [1, 2, 3] if whole else [1e-9, 1e-6, 1e-3, one / 10]
    if not COSTLY.search(f"{key} {parameter.annotation}"):
        tried += [5, 64] if whole else [one * 10, 1e2, 2.5, 16.0, 40.0, 0.99, 0.999999, -0.99, 1e6]
    tried += [0]
    return [[x] for x in tried] + [[x, one] for x in tried] if isinstance(value, list) else tried


def run(task: params.Task, changed: dict[str, Any], limit: float) -> End:
    """Run a notebook with changed parameters in a child process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(task, changed, theirs))
    process.start()
    theirs.close()
    end = End("hang", f"beyond {limit:g} s")
    if ours.poll(limit):
        try:
            end = ours.recv()
        except EOFError:
            process.join()
            end = End("error", f"the process died ({process.exitcode})")
    process.kill()
    process.join()
    return end


def _child(task: params.Task, changed: dict[str, Any], pipe) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        end = _execute(task, changed)
    ours = [w for w in heard if str(ROOT) in w.filename or "<cell" in w.filename]
    end.warned = sorted({f"{w.category.__name__}: {w.message}" for w in ours})
    pipe.send(end)
    os._exit(0)


def _execute(task: params.Task, changed: dict[str, Any]) -> End:
    try:
        (task,) = params.plan(ROOT, "quick", [task.name], recorded={task.name: params.Source("here", changed, ROOT)})
    except params.UsageError as error:
        return End("refused", "\n".join(error.args))
    from lib.notebook.results import Results

    Results.figure = _no_figure
    space: dict[str, Any] = {"__name__": "__main__", "display": lambda *shown: None}
    for cell in json.loads(task.notebook.text)["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        try:
            exec(compile(source, f"<cell {cell['id']}>", "exec"), space)
        except Exception as error:
            return End("error", f"{cell['id']}: {type(error).__name__}: {error}")
        if "parameters" in cell["metadata"].get("tags", []):
            space |= task.parameters
    return End("done", verdicts={name: claim.verdict for name, claim in space["results"].claims.items()})


def _no_figure(self, figure, name, caption, alt) -> None:
    import matplotlib.pyplot as plt

    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=None, metavar="NN", help="these notebooks")
    parser.add_argument("--tweaks", type=int, default=200, help="how many, drawn from all (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (2)")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds for one (120)")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["MPLBACKEND"] = "agg"
    _import_all()
    notebooks = {number: task for number, task in tasks().items() if not options.only or number in options.only}
    chosen = [(n, tweak) for n, task in notebooks.items() for tweak in tweaks(task, TINY[n])]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.tweaks]
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:

        def one(job):
            (number, tweak), start = job, time.monotonic()
            end = run(notebooks[number], TINY[number] | tweak, options.limit)
            return number, tweak, end, time.monotonic() - start

        for number, tweak, end, seconds in pool.map(one, chosen):
            bad += not end.good
            fails = [name for name, verdict in end.verdicts.items() if verdict == "FAIL"]
            said = " ".join([end.said[:300], *end.warned, f"FAIL: {', '.join(fails)}" if fails else ""])
            print(f"{'' if end.good else '!! '}{number} {tweak} {end.how} {seconds:.0f} s {said}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} ended as they should")
    return int(bad > 0)


def _import_all() -> None:
    """Once, before the children are forked."""
    import importlib

    import matplotlib.pyplot  # noqa: F401

    for path in itertools.chain(ROOT.glob("lib/experiments/**/*.py"), ROOT.glob("lib/kernels/*.py")):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


if __name__ == "__main__":
    sys.exit(main())
