"""Collections of tiny notebooks, made by code, for the tests of the runner."""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nbformat import v4

REPOSITORY = Path(__file__).resolve().parents[1]
PARAMETERS = 'n: int = 3  # how many\nseed: int = 0  # root of all draws\noutput_dir: str = ""  # where\n'
CLAIM = {
    "id": "claim-one",
    "statement": "The mean is $\\mu$.",
    "source": "Theorem 1",
    "status": "exact here",
    "chosen_on": "",
    "prediction": 1.0,
    "band": [0.9, 1.1],
    "estimate": 1.01,
    "interval": [1.0, 1.02],
    "cases": 1,
    "worst": False,
    "caught": [-0.12, 0.1],
    "verdict": "PASS",
    "control": {"what": "a wrong constant", "estimate": 2.0, "interval": [1.9, 2.1], "verdict": "FAIL"},
    "near_miss": None,
    "cell": "claim-one",
}


def save(name: str, claims=(CLAIM,), metrics=None, figures=()) -> str:
    """The source of a last cell that writes results.json; ``n`` and ``seed`` are read in the notebook."""
    record = {"schema": 2, "notebook": name, "claims": list(claims), "figures": list(figures)}
    return (
        "import json, pathlib\n"
        f"record = json.loads({json.dumps(json.dumps(record))})\n"
        "record['parameters'] = {'n': n, 'seed': seed}\n"
        f"record['metrics'] = {metrics or {'mean': {'value': 1.0, 'tolerance': 0.1}}}\n"
        "if output_dir:\n    pathlib.Path(output_dir, 'results.json').write_text(json.dumps(record))"
    )


def run(preset: str, notebooks: dict[str, dict]) -> dict:
    """The content of a run.json: what its entries lack is filled in."""
    entry = {"title": "First", "status": "ok", "error": "", "excerpt": [], "warnings": [], "seconds": 2.0}
    entry |= {"parameters": {"n": 3, "seed": 0}, "differs": {}, "overrides": {}, "fingerprint": {}}
    about = {"commit": None, "dirty": False, "python": "3", "platform": "p", "device": "cpu", "versions": {}}
    about |= {"machine": {"cpu": "c", "cores": 1, "memory_GiB": 1.0}, "seed": {}, "preset": preset}
    times = {"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00"}
    state = {"schema": 1, "status": "ok", "exit_code": 0}
    return state | about | times | {"notebooks": {name: entry | given for name, given in notebooks.items()}}


def notebook(name: str, *cells: str, parameters: str = PARAMETERS, last: str | None = None):
    """A notebook: a title, the parameters, the given cells (code, or Markdown if it starts with #), results.json."""
    declared = v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    made = [v4.new_markdown_cell(c) if c.startswith("#") else v4.new_code_cell(c) for c in cells]
    made = [v4.new_markdown_cell(f"# Title of {name}"), declared, *made, v4.new_code_cell(last or save(name))]
    for number, cell in enumerate(made):
        cell.id = f"cell-{number}"  # the same in every run
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


class Collection:
    """A folder with run_all.py, notebooks and parameters, run with the real command."""

    def __init__(self, root: Path, *notebooks, **named):
        """``notebooks`` are names of plain notebooks, ``named`` maps ``nNN_name`` to sources of cells or a notebook."""
        self.root = root
        for folder in ("notebooks", "params/paper", "params/quick"):
            (root / folder).mkdir(parents=True)
        shutil.copy(REPOSITORY / "run_all.py", root)
        for name in notebooks:
            self.add(name, notebook(name))
        for name, made in named.items():
            name = name.removeprefix("n")
            self.add(name, notebook(name, *made) if isinstance(made, tuple | list) else made)

    def keep_library(self) -> "Collection":
        """Give it a library of its own, so that a test knows when the library changes."""
        shutil.copytree(REPOSITORY / "lib", self.root / "lib", ignore=shutil.ignore_patterns("__pycache__"))
        return self

    def add(self, name: str, made) -> None:
        """Put in a notebook, with an empty parameters file for each preset."""
        text = made if isinstance(made, str) else json.dumps(made)
        (self.root / f"notebooks/{name}.ipynb").write_text(text, encoding="utf-8")
        for preset in ("paper", "quick"):
            (self.root / f"params/{preset}/{name}.yaml").write_text("{}\n", encoding="utf-8")

    def command(self, *arguments) -> dict:
        """What subprocess needs to start run_all.py here."""
        line = [sys.executable, str(self.root / "run_all.py"), *map(str, arguments)]
        variables = {**os.environ, "PYTHONPATH": str(self.root)} if (self.root / "lib").exists() else {**os.environ}
        return {"args": line, "cwd": self.root, "env": variables, "text": True}

    def run(self, *arguments) -> subprocess.CompletedProcess:
        """Run run_all.py and wait for it."""
        return subprocess.run(**self.command(*arguments), capture_output=True, timeout=300)

    def check(self, *arguments) -> tuple[int, str, str]:
        """The same in this process, for what starts no kernel. Returns the exit code, stdout and stderr."""
        spec = importlib.util.spec_from_file_location("run_all_under_test", self.root / "run_all.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = module.main([str(argument) for argument in arguments])
            except SystemExit as exit:
                code = exit.code
        return code, out.getvalue(), err.getvalue()

    def params(self, name: str, text: str, preset: str = "paper") -> Path:
        """Write the parameters file of a notebook."""
        path = self.root / f"params/{preset}/{name}.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    @property
    def runs(self) -> list[Path]:
        """The folders of its runs, oldest first."""
        return sorted((self.root / "outputs").glob("2*"))

    def status(self, name: str) -> dict:
        """The status.json of a notebook in the last run."""
        return json.loads((self.runs[-1] / name / "status.json").read_text(encoding="utf-8"))
