"""Stopping, dying, full disks, and going on afterwards: nothing is lost and nothing pretended."""

import json
import resource
import signal
import subprocess
import time

import nbformat
import numpy as np
import psutil
import pytest
from tiny import Collection, notebook

from lib.notebook.files import read_json

# Hangs until a file beside run_all.py exists, and tells the process it runs in.
WAITS = """import os, pathlib, time
pathlib.Path('pid').write_text(str(os.getpid()))
while not pathlib.Path({!r}).exists():
    time.sleep(0.05)"""


def until(condition, seconds: float = 120):
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


class Interrupted:
    """A collection whose second notebook hangs until told to go on, started and waited for."""

    def __init__(self, root):
        self.go = root / "go"
        self.made = Collection(root, "01_first", n02_waits=["# Waiting", WAITS.format(str(self.go))]).keep_library()
        self.made.add("03_last", notebook("03_last"))
        command = self.made.command("--preset", "quick", "--jobs", 1)
        self.process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until(lambda: list(root.glob("outputs/*/02_waits/pid")) and self._text("02_waits/pid"))
        self.kernel = int(self._text("02_waits/pid"))

    def _text(self, name: str) -> str:
        return (self.made.runs[0] / name).read_text()

    def statuses(self) -> list[str]:
        run = json.loads(self._text("run.json"))
        return [entry["status"] for entry in run["notebooks"].values()]

    def resume(self) -> str:
        """Let it finish; returns what was said. The folder stays locked until the last child has ended."""
        self.go.touch()
        answers = []

        def started() -> bool:
            answers.append(self.made.run("--resume", self.made.runs[0].name))
            return "still going on" not in answers[-1].stderr

        until(started)
        answer = answers[-1]
        assert answer.returncode == 0, answer
        assert self.statuses() == ["ok"] * 3
        assert len(self.made.runs) == 1
        return answer.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_children_keeps_what_is_done_and_can_be_resumed(tmp_path, number, code):
    run = Interrupted(tmp_path)
    second = run.made.run("--resume", run.made.runs[0].name)
    assert (second.returncode, second.stderr) == (2, f"{run.made.runs[0].name}: this run is still going on\n")
    run.process.send_signal(number)
    out, err = run.process.communicate(timeout=60)
    assert (run.process.returncode, err) == (code, "")
    assert gone(run.kernel)
    assert run.statuses() == ["ok", "interrupted", "interrupted"]
    assert "02_waits: interrupted: stopped on request [cell 5 of 6, section 'Waiting']" in out
    assert "03_last: interrupted: not started" in out
    folder = run.made.runs[0]
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert "This run did not finish" in nbformat.read(folder / "02_waits/02_waits.ipynb", as_version=4).cells[0].source
    assert (folder / "index.html").exists()

    said = run.resume()
    assert "01_first  kept: ok and unchanged" in said
    assert "02_waits  again: interrupted" in said
    assert "2 notebooks, quick preset" in said


def test_a_killed_supervisor_takes_its_children_along_and_pretends_nothing(tmp_path):
    run = Interrupted(tmp_path)
    run.process.kill()
    run.process.communicate(timeout=60)
    until(lambda: gone(run.kernel))
    assert run.statuses() == ["interrupted"] * 3  # as written before the first kernel started
    assert read_json(run.made.runs[0] / "01_first/status.json")["status"] == "ok"
    assert not (run.made.runs[0] / "02_waits/status.json").exists()
    assert "01_first  kept: ok and unchanged" in run.resume()


def test_stopped_while_a_page_is_made(tmp_path):
    """The notebook is done; only its page is missing, and a resumed run makes just that."""
    pipe = "import os\nos.mkfifo('01_page.html.partial')"  # opening it waits for a reader that never comes
    made = Collection(tmp_path, n01_page=[pipe]).keep_library()
    process = subprocess.Popen(**made.command("--preset", "quick"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: list(tmp_path.glob("outputs/*/01_page/01_page.ipynb")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert made.status("01_page")["status"] == "ok"
    assert made.status("01_page")["warnings"] == ["its page was not made: interrupted"]
    folder = made.runs[0]
    results = (folder / "01_page/results.json").stat().st_mtime_ns
    (folder / "01_page/01_page.html.partial").unlink()
    answer = made.run("--resume", folder.name)
    assert answer.returncode == 0, answer
    assert "0 notebooks, quick preset" in answer.stdout
    assert (folder / "01_page/01_page.html").exists()
    assert (folder / "01_page/results.json").stat().st_mtime_ns == results


def test_resume_repeats_what_has_changed(tmp_path):
    made = Collection(tmp_path, "01_first", "02_second").keep_library()
    cell = 'matrix: Covariance = "isotropic"\nn: int = 3\nseed: int = 0\noutput_dir: str = ""'
    third = notebook("03_third", parameters=cell)
    third.cells.insert(
        1, nbformat.v4.new_code_cell("from lib.notebook.parameter_types import Covariance", id="imports")
    )
    made.add("03_third", third)
    np.save(tmp_path / "mine.npy", np.eye(3))
    mine = tmp_path / "03_third.yaml"
    mine.write_text("matrix: mine.npy\n")
    answer = made.run("--preset", "quick", "--params", mine, "--set", "02.n=7")
    assert answer.returncode == 0, answer
    folder = made.runs[0]
    assert (folder / "03_third/inputs/mine.npy").exists()
    assert "matrix: inputs/mine.npy" in (folder / "03_third/parameters.yaml").read_text()
    run = read_json(folder / "run.json")
    assert run["notebooks"]["03_third"]["differs"] == {"matrix": {"preset": "isotropic", "here": "inputs/mine.npy"}}
    (tmp_path / "mine.npy").unlink()  # a run holds its inputs
    mine.unlink()

    made.add("01_first", notebook("01_first", "1 + 1"))
    made.params("02_second", "seed: 4", "quick")
    answer = made.run("--resume", folder)
    assert answer.returncode == 0, answer
    for line in ("01_first   again: code cells", "02_second  again: parameters", "03_third   kept: ok and unchanged"):
        assert line in answer.stdout
    assert read_json(folder / "02_second/results.json")["parameters"] == {"n": 7, "seed": 4}
    assert "matrix: inputs/mine.npy" in (folder / "03_third/parameters.yaml").read_text()

    (tmp_path / "lib/runner/report.py").open("a").write("# how it runs changes no result\n")
    answer = made.run("--resume", folder)
    assert answer.stdout.count("kept: ok and unchanged") == 3
    (tmp_path / "lib/tokens/measure.py").open("a").write("# what it computes with\n")
    answer = made.run("--resume", folder)
    assert answer.stdout.count("again: lib sources") == 3
    assert "matrix: inputs/mine.npy" in (folder / "03_third/parameters.yaml").read_text()


@pytest.mark.parametrize(
    ("limit", "code", "expected"),
    [(100_000, 1, "OSError: [Errno 27] File too large"), (1_000, 1, "run_all.py: File too large: ")],
)
def test_a_full_disk_is_a_clear_error(tmp_path, limit, code, expected):
    """Stood in for by a limit on the size of files, first met by a notebook and then by the runner itself."""
    made = Collection(tmp_path, n01_large=["print('x' * 150_000)"])
    answer = subprocess.run(
        **made.command("--preset", "quick"),
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        timeout=300,
    )
    assert answer.returncode == code
    assert expected in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stderr.count("\n") <= 1
