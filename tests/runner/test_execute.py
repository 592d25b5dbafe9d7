"""Each way a notebook can go wrong, with a tiny notebook of its own; all in three runs of the real command."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from tiny import Collection, notebook

from lib.runner.kernel import CUT, TEXT_LIMIT

SPAWN = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1e6)'], start_new_session=True)\n"
    "open('pid', 'w').write(str(child.pid))"
)
FAULTS = {
    "01_plain": ["# A part", "import os, json\njson.dump([os.getcwd(), dict(os.environ)], open('where.json', 'w'))"],
    "02_raises": ["# The part that breaks", "print('said before')", "def f():\n    return 1 / 0\nf()", "never = 1"],
    "03_killed": [
        "# Part",
        "import os, signal, time\nprint('last words')\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)",
    ],
    "04_leaves": ["import os\nos._exit(3)"],
    "05_exits": ["import sys\nsys.exit(0)", "never = 1"],
    "06_exits_saying": ["import sys\nsys.exit('enough')"],
    "07_quits": ["quit()", "never = 1"],
    "08_floods": ["for i in range(200_000):\n    print('a line of output that nobody reads', i)"],
    "09_progress": ["import sys\nfor i in range(100_000):\n    sys.stdout.write(f'\\r{i + 1} of 100000')\nprint()"],
    "10_displays": ["from IPython.display import display\nfor i in range(1500):\n    display(i)\n1 / 0"],
    "11_background": [SPAWN],
    "12_lingers": ["import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()"],
    "13_no_results": notebook("13_no_results", last="pass"),
    "14_bad_results": notebook("14_bad_results", last="open('results.json', 'w').write('{\"claims\": []}')"),
    "15_no_page": ["import os\nos.mkdir('15_no_page.html')"],
    "19_kills_its_supervisor": ["import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1e6)"],
    "20_captured": ["# Part", "%%capture\n1 / 0", "never = 1"],
    "21_shell": ["!false"],
    "16_crashes": ["import ctypes\nctypes.string_at(0)"],
}


def stranger(name: str, **metadata):
    made = notebook(name)
    made.metadata = metadata
    return made


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """One run of all of them, where a foreign python3 kernel is registered and everything has long names."""
    root = tmp_path_factory.mktemp("faults") / ("a {long} name " * 12)
    made = Collection(root, **{f"n{name}": cells for name, cells in FAULTS.items()})
    made.add("17_no_kernelspec", stranger("17_no_kernelspec"))
    made.add("18_lost_kernelspec", stranger("18_lost_kernelspec", kernelspec={"name": "gone", "display_name": "?"}))
    decoy = root / "share/kernels/python3"
    decoy.mkdir(parents=True)
    (decoy / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "decoy", "language": "python"}))
    command = made.command("--preset", "quick", "--jobs", 3, "--timeout", 240)
    command["env"] |= {
        "JUPYTER_PATH": str(root / "share"),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "7",
        "TMPDIR": str(root),
    }
    made.answer = subprocess.run(**command, capture_output=True, timeout=500)
    return made


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("01_plain", "ok", ""),
        ("02_raises", "failed", "ZeroDivisionError: division by zero [cell 6 of 8, section 'The part that breaks']"),
        ("03_killed", "kernel died", "killed by SIGKILL, perhaps out of memory [cell 5 of 6, section 'Part']"),
        ("04_leaves", "kernel died", "exit code 3 ["),
        ("05_exits", "stopped early", "SystemExit: 0 ["),
        ("06_exits_saying", "stopped early", "SystemExit: enough ["),
        ("07_quits", "stopped early", "a cell called quit() ["),
        ("08_floods", "ok", ""),
        ("09_progress", "ok", ""),
        ("10_displays", "failed", "ZeroDivisionError"),
        ("11_background", "ok", ""),
        ("12_lingers", "ok", ""),
        ("13_no_results", "failed", "it wrote no results.json"),
        ("14_bad_results", "failed", "its results.json is malformed: notebook: Field required"),
        ("15_no_page", "ok", ""),
        ("16_crashes", "kernel died", "killed by SIGSEGV ["),
        ("20_captured", "failed", "ZeroDivisionError: division by zero [cell 5 of 7, section 'Part']"),
        ("21_shell", "ok", ""),  # a command that fails is no error in Jupyter either
        ("19_kills_its_supervisor", "failed", "its process ended without a word (exit code -9)"),
        ("17_no_kernelspec", "ok", ""),
        ("18_lost_kernelspec", "ok", ""),
    ],
)
def test_each_ends_with_the_truth(faults, name, status, error):
    found = faults.status(name)
    assert found["status"] == status, found
    assert found["error"].startswith(error), found
    if error:
        assert f"{name}: {status}: {found['error']}" in faults.answer.stdout
    written = nbformat.read(faults.runs[-1] / name / f"{name}.ipynb", as_version=4)  # whole, whatever happened
    nbformat.validate(written)
    assert not list((faults.runs[-1] / name).glob("*partial*"))
    assert str(faults.root) not in json.dumps(found)


def test_one_failure_stops_no_other_and_decides_the_exit_code(faults):
    assert faults.answer.returncode == 1
    assert faults.answer.stderr == ""
    assert "9 of 21 notebooks ok" in faults.answer.stdout


def test_the_summary_quotes_the_last_lines(faults):
    assert "| last words" in faults.answer.stdout
    assert "| ZeroDivisionError: division by zero" in faults.answer.stdout
    assert faults.status("02_raises")["excerpt"][-1] == "ZeroDivisionError: division by zero"


def test_progress_names_the_section(faults):
    assert "02_raises" in faults.answer.stdout
    assert any(line.split(maxsplit=3)[3:] == ["The part that breaks"] for line in faults.answer.stdout.splitlines())


def test_a_failed_notebook_is_kept_with_its_error_marked(faults):
    folder = faults.runs[-1] / "02_raises"
    cells = nbformat.read(folder / "02_raises.ipynb", as_version=4).cells
    assert "This run did not finish (failed)" in cells[0].source
    at = next(i for i, cell in enumerate(cells) if "stopped-here" in cell.source and i)
    assert cells[at + 1].outputs[-1].ename == "ZeroDivisionError"
    assert "outputs" not in cells[-1] or not cells[-1].outputs
    page = (folder / "02_raises.html").read_text()
    assert 'href="#stopped-here"' in page and 'id="stopped-here"' in page
    assert "ZeroDivisionError" in page


def test_a_kernel_runs_in_its_own_folder_on_one_thread_and_shows_figures(faults):
    where, variables = json.loads((faults.runs[-1] / "01_plain/where.json").read_text())
    assert Path(where) == faults.runs[-1] / "01_plain"
    assert {variables[key] for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"1"}
    assert variables["PYTHONHASHSEED"] == "0"
    assert "inline" in variables["MPLBACKEND"]


def test_a_flood_is_cut_and_a_progress_bar_is_its_last_state(faults):
    def text(name):
        cells = nbformat.read(faults.runs[-1] / name / f"{name}.ipynb", as_version=4).cells
        return "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", []))

    flood = text("08_floods")
    assert len(flood) <= TEXT_LIMIT + 2 * len(CUT)
    assert flood.startswith("a line of output that nobody reads 0\n") and CUT in flood
    assert flood.endswith("reads 199999\n")
    assert text("09_progress") == "100000 of 100000\n"
    page = (faults.runs[-1] / "10_displays/10_displays.html").read_text()
    assert page.count(CUT.strip()) == 1


def test_no_process_is_left_behind(faults):
    status = faults.status("11_background")
    assert status["warnings"] == ["it left 1 running process(es), which have been ended"]
    pid = int((faults.runs[-1] / "11_background/pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_page_that_cannot_be_made_is_a_warning(faults):
    assert faults.status("15_no_page")["warnings"][0].startswith("its page was not made: IsADirectoryError")


def test_no_machine_is_named_in_the_record(faults):
    text = (faults.runs[-1] / "run.json").read_text()
    assert str(faults.root) not in text and str(Path.home()) not in text and sys.prefix not in text
    run = json.loads(text)
    assert run["status"] == "failed" and run["exit_code"] == 1
    assert run["seed"]["01_plain"] == 0
    assert set(run["machine"]) == {"cpu", "cores", "memory_GiB"}


@pytest.mark.parametrize(
    ("limit", "cells", "error"),
    [
        (
            "--cell-timeout",
            ["import time\ntime.sleep(1e6)"],
            "a cell ran longer than 6 s (--cell-timeout)",
        ),
        (
            "--cell-timeout",
            ["import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"],
            "a cell ran longer than 6 s (--cell-timeout)",
        ),
        ("--timeout", ["import time\nwhile True:\n    time.sleep(0.1)"], "ran longer than 6 s (--timeout)"),
    ],
)
def test_a_deadline(tmp_path, limit, cells, error):
    made = Collection(tmp_path, n01_hangs=cells)
    answer = made.run("--preset", "quick", limit, 6)
    assert answer.returncode == 1, answer
    assert made.status("01_hangs")["status"] == "timeout"
    assert made.status("01_hangs")["error"].startswith(error)
