"""Plant one fault at a time in a copy of `lib` and see which test catches it: `make mutants`.

    .venv/bin/python tests/mutants.py [--only regression/sgd ...] [--jobs 2] [--limit 180] [--notebooks]

The faults are written by hand, such as a colleague would make: a factor dropped, L - 1 for L, the worst for the best, a
seed ignored. A framework that flips operators plants thousands, most of them harmless or caught by any test, and each
costs seconds here. They are data, `tests/mutants/<package>.diff`, three lines each and a fourth where one may survive:

    @ regression/step_rules

    default: the decays of Adam are exchanged
    - first: float = 0.9, second: float = 0.999
    + first: float = 0.999, second: float = 0.9
    = why no test can see it

that is a kind, what is wrong, the text that is replaced, which occurs once, and its replacement. The tests of a module
are those of its package's folder that import it, its mirror first; without any, all that do, or those of the modules
that use it. A fault that they let pass may still be caught by a claim of a quick notebook (`--notebooks`). The table is
`tests/mutants/README.md`; faults that were left out by `--only` keep their rows in it.
"""

import argparse
import ast
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/mutants/README.md"
LEFT_OUT = ".*", "__pycache__", "outputs", "*.egg-info"  # of the copies
PRINTED = "printed.txt"
FORKS = multiprocessing.get_context("forkserver")
LARGE = "pytest", "hypothesis", "numpy", "scipy.stats", "scipy.optimize", "pandas", "torch"  # imported once for all
SURVIVES, NOT_RUN = "**survives**", "not run"


@dataclass(frozen=True)
class Fault:
    """One change of one module of lib, named like `regression/sgd`."""

    module: str
    kind: str
    what: str
    old: str
    new: str
    excuse: str

    def planted(self, root: Path = ROOT) -> str:
        """The source of the module with the fault. Raises ValueError if the text does not occur exactly once."""
        source = (root / f"lib/{self.module}.py").read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.module}, {self.what}: its text occurs {count} times")
        return source.replace(self.old, self.new)


def faults() -> list[Fault]:
    """All faults, in the order of their files."""
    found = []
    for path in sorted(ROOT.glob("tests/mutants/*.diff")):
        module = ""
        for stanza in path.read_text(encoding="utf-8").strip().split("\n\n"):
            if stanza.startswith("@ "):
                module = stanza[2:].strip()
                continue
            title, *lines = stanza.splitlines()
            kind, what = title.split(": ", 1)
            old, new, excuse = ("\n".join(x[2:] for x in lines if x[:1] == mark) for mark in "-+=")
            found.append(Fault(module, kind, what, old, new, excuse.replace("\n", " ")))
    return found


@cache
def uses(path: Path) -> frozenset[str]:
    """The modules of lib that a file imports; what a package hands on counts as the module that it comes from."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = "\n".join(line for cell in cells if cell["cell_type"] == "code" for line in cell["source"])
        source = "\n".join(re.findall(r"^(?:from|import) .*?(?:\([^)]*\)|$)", source, flags=re.MULTILINE))
    else:
        source = path.read_text(encoding="utf-8")
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lib"):
            found |= {_origin(node.module.replace(".", "/")[4:], alias.name) for alias in node.names}
    return frozenset(found)


def _origin(module: str, name: str) -> str:
    """The module that a name comes from, followed through packages."""
    inner = ROOT / "lib" / module / name
    if inner.with_suffix(".py").exists() or (inner / "__init__.py").exists():
        return f"{module}/{name}".lstrip("/")
    package = ROOT / "lib" / module / "__init__.py"
    if package.exists():
        for node in ast.walk(ast.parse(package.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
                return _origin(node.module.replace(".", "/")[4:], name)
    return module


@cache
def suite_of(module: str) -> tuple[str, ...]:
    """The test files of a module, its mirror first."""
    package, name = module.split("/", 1)[0], module.rsplit("/", 1)[-1]
    users = [path for path in sorted(ROOT.glob("tests/**/test_*.py")) if module in uses(path)]
    users = [path for path in users if package in path.parts] or users
    if not users:
        above = [path for path in sorted(ROOT.glob("lib/**/*.py")) if path.stem != "__init__" and module in uses(path)]
        names = [str(path.relative_to(ROOT / "lib").with_suffix("")) for path in above]
        return tuple(dict.fromkeys(test for other in names for test in suite_of(other)))
    return tuple(str(p.relative_to(ROOT)) for p in sorted(users, key=lambda p: p.stem != f"test_{name}"))


def notebooks_of(module: str) -> list[str]:
    """The numbers of the notebooks that use a module, however far down."""

    def reached(path: Path) -> set[str]:
        seen, ahead = set(), [*uses(path)]
        while ahead:
            name = ahead.pop()
            file = ROOT / "lib" / f"{name}.py"
            file = file if file.exists() else ROOT / "lib" / name / "__init__.py"
            if name not in seen and file.exists():
                seen.add(name)
                ahead.extend(uses(file))
        return seen

    return [path.name[:2] for path in sorted(ROOT.glob("notebooks/*.ipynb")) if module in reached(path)]


def run_tests(folder: Path, limit: float, *arguments: str) -> tuple[int | None, str]:
    """Run pytest there, on the library there. The exit code, None for a hang, and what was printed."""
    process = FORKS.Process(target=_pytest, args=(folder, arguments))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return None, ""
    return process.exitcode, (folder / PRINTED).read_text(encoding="utf-8")


def _pytest(folder: Path, arguments: tuple[str, ...]) -> None:
    """Pytest in a process of its own, which has the large packages already but nothing of the library."""
    os.setsid()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # it would outlive the source that it was made from
    with open(PRINTED, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import pytest

    sys.exit(int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments])))


def claims_stand(folder: Path, number: str, limit: float) -> bool:
    """Whether a quick notebook runs there and none of its claims fails."""
    line = [sys.executable, "-B", "run_all.py", "--preset", "quick", "--only", number, "--jobs", "1"]
    options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(folder)}, "capture_output": True}
    return subprocess.run([*line, "--timeout", f"{limit:.0f}"], **options, check=False).returncode == 0


def caught_by(fault: Fault, snapshot: Path, limit: float, notebooks: bool) -> str:
    """Who catches a fault: a test, a notebook, a hang that is a test's as well, or nobody."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(shutil.copytree(snapshot, Path(name) / "copy"))
        (folder / f"lib/{fault.module}.py").write_text(fault.planted(snapshot), encoding="utf-8")
        code, printed = run_tests(folder, limit, "-x", *suite_of(fault.module))
        if code is None:
            return f"a hang beyond {limit:g} s"
        if code:
            failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+?)(?:\[.*)?(?: - .*)?$", printed, flags=re.MULTILINE)
            return f"`{failed[1]}`" if failed else f"an error at import ({code})"
        for number in notebooks_of(fault.module) if notebooks else ():
            if not claims_stand(folder, number, 5 * limit):
                return f"notebook {number}"
    return SURVIVES


def table(caught: dict[tuple[str, str], str]) -> str:
    """The report: counts by package, survivors with their excuses, and every fault."""
    planted = faults()
    by_package: dict[str, list[str]] = {}
    rows, survivors = [], []
    for fault in planted:
        by = caught.get((fault.module, fault.what), NOT_RUN)
        by_package.setdefault(fault.module.split("/")[0], []).append(by)
        rows.append(f"| {fault.module} | {fault.kind} | {fault.what} | {by} |")
        if by == SURVIVES:
            survivors.append(
                f"| {fault.module} | {fault.what} | {fault.excuse or 'a real fault that a test should still catch'} |"
            )
    by_package["all"] = [by for package in by_package.values() for by in package]
    counts = [
        f"| {name} | {len(all_)} | {sum(x not in (SURVIVES, NOT_RUN) and not x.startswith('notebook') for x in all_)} "
        f"| {sum(x.startswith('notebook') for x in all_)} | {all_.count(SURVIVES)} | {all_.count(NOT_RUN)} |"
        for name, all_ in by_package.items()
    ]
    return "\n".join(
        [
            "# Faults planted in `lib`, and what catches them\n",
            "Written by `make mutants` (`tests/mutants.py`), from the faults in the `.diff` files beside it.\n",
            "| package | planted | caught by tests | by a notebook | survive | not run |\n|---|---|---|---|---|---|",
            *counts,
            "\n## Survivors\n\n| module | fault | why |\n|---|---|---|",
            *survivors,
            "\n## All faults\n\n| module | kind | fault | caught by |\n|---|---|---|---|",
            *rows,
            "",
        ]
    )


def known() -> dict[tuple[str, str], str]:
    """What the table says already."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.rpartition("## All faults")[2].splitlines()]
    return {(row[0], row[2]): row[3] for row in rows if len(row) == 4}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="MODULE", help="packages or modules of lib")
    parser.add_argument("--missed", action="store_true", help="only those that survived the last time or did not run")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (2)")
    parser.add_argument("--limit", type=float, default=180, metavar="S", help="seconds for the tests of a fault (180)")
    parser.add_argument("--notebooks", action="store_true", help="show survivors to the quick notebooks that use them")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    FORKS.set_forkserver_preload(list(LARGE))
    caught = known()
    chosen = [fault for fault in faults() if fault.module.startswith(tuple(options.only))]
    if options.missed:
        chosen = [f for f in chosen if caught.get((f.module, f.what), NOT_RUN) in (SURVIVES, NOT_RUN)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(options.jobs) as pool:
        snapshot = Path(shutil.copytree(ROOT, Path(name) / "copy", ignore=shutil.ignore_patterns(*LEFT_OUT)))
        files = tuple(sorted({test for fault in chosen for test in suite_of(fault.module)}))
        _, printed = run_tests(snapshot, 3600, "-n", str(options.jobs), "--dist", "loadfile", *files)
        broken = set(re.findall(r"^(?:FAILED|ERROR) (\S+?\.py)", printed, flags=re.MULTILINE))
        for test in sorted(broken):
            print(f"{test} fails without any fault and is left out", flush=True)
            (snapshot / test).write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        asked = {pool.submit(caught_by, f, snapshot, options.limit, options.notebooks): f for f in chosen}
        for count, done in enumerate(as_completed(asked), 1):
            fault = asked[done]
            caught[fault.module, fault.what] = done.result()
            print(f"{count}/{len(asked)} {fault.module}, {fault.what}: {done.result()}", flush=True)
            TABLE.write_text(table(caught), encoding="utf-8")
    survivors = [f for f in chosen if caught[f.module, f.what] == SURVIVES]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
