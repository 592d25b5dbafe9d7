"""The supervised child: executes one notebook, exports its page, and says truthfully how it went.

``execute.py`` starts it in the notebook's output folder with the job as a JSON line on stdin. A second line there is
the reason to stop; the end of the pipe without one means that the supervisor died. Events go back as JSON lines on
stdout; whatever a kernel or a library prints goes to stderr.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import papermill
import psutil
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbconvert.filters import strip_ansi

from lib.notebook.files import read_json
from lib.runner import kernel, pages
from lib.runner.files import keep_notebook, partial
from lib.runner.params import headings

TOKEN = "RUN_ALL_TOKEN"  # in the environment of a kernel and of all that it starts, so that nothing is left behind


class StoppedEarlyError(Exception):
    """A cell ended the kernel on purpose."""


class Child:
    """One job from start to end: what is known of it while another thread listens for a reason to stop."""

    def __init__(self, job: dict, channel: int):
        self.job, self.channel = job, channel
        self.client: kernel.Client | None = None
        self.cell: int | None = None  # the one being executed
        self.section: str | None = None
        self.executing = True
        self.stopping = ""  # why: timeout or interrupted

    def run(self) -> None:
        """Execute the notebook unless that is done, then make its page; say how it went as soon as it is known."""
        threading.Thread(target=self.listen, daemon=True).start()
        target = Path(f"{self.job['name']}.ipynb")
        if partial(target).exists():
            outcome = self.execute(target)
            left = sweep(self.job["token"], patience=1)
            self.emit(**outcome)
            if left:
                self.emit(warning=f"it left {left} running process(es), which have been ended")
            keep_notebook(target, outcome, self.cell)
        else:  # a resumed run lacks no more than its page
            self.emit(**read_json(Path("status.json")) | {"warnings": []})
        self.executing = False
        try:
            for warning in pages.export(target):
                self.emit(warning=warning)
        except Exception as error:
            self.emit(warning=f"its page was not made: {type(error).__name__}: {error}")

    def listen(self) -> None:
        """Wait for a reason to stop; then end the kernel, which ends the execution. A page is just given up."""
        self.stopping = sys.stdin.readline().strip() or "interrupted"
        if not self.executing:
            self.emit(warning=f"its page was not made: {self.stopping}")
            os._exit(0)
        sweep(self.job["token"])

    def emit(self, **event) -> None:
        """Tell the supervisor something."""
        with contextlib.suppress(OSError):  # the supervisor may be dead; what is on disk stays true
            os.write(self.channel, (json.dumps(event) + "\n").encode())

    def execute(self, target: Path) -> dict:
        """Run the cells. Returns the status, a line on what went wrong, the last lines of output, and the time."""
        start, status, error, excerpt = time.monotonic(), "ok", "", []
        path, kind = str(partial(target)), {"kernel_name": "python3", "language": "python"}  # whatever it names itself
        engine = {"engine_name": "supervised", "run": self.run_cells, "progress_bar": False}
        try:
            papermill.execute_notebook(path, path, self.job["parameters"], **kind, **engine)
        except Exception as problem:
            status, error = self.diagnose(problem)
            if self.cell is not None:
                error += f" [cell {self.cell + 1} of {len(self.client.nb.cells)}, section {self.section!r}]"
                excerpt = last_lines(self.client.nb.cells[self.cell].outputs)
        return {"status": status, "error": error, "excerpt": excerpt, "seconds": round(time.monotonic() - start, 3)}

    def run_cells(self, manager) -> None:
        """In a kernel of its own, over sockets in a private folder."""
        limit, scratch = self.job["cell_timeout"], self.job["scratch"]
        self.client = kernel.Client(
            manager,
            km=kernel.Kernel(connection_file=f"{scratch}/kernel.json", transport="ipc", ip=f"{scratch}/k"),
            timeout=limit,
            iopub_timeout=limit,  # a flood of output may arrive well after the cell is done
            on_cell_execute=self.on_cell,
            on_cell_executed=self.on_reply,
        )
        self.client.owns_km = True  # so that it shuts the kernel down
        self.client.execute(env={**os.environ, TOKEN: self.job["token"]})

    def on_cell(self, cell, cell_index: int) -> None:
        """Note the cell that is about to run, and tell of a new section."""
        self.cell = cell_index
        section = list(headings(self.client.nb))[cell_index]
        if section != self.section:
            self.section = section
            self.emit(section=f"{cell_index + 1}/{len(self.client.nb.cells)}  {section}")
        if self.stopping:
            raise StoppedEarlyError

    def on_reply(self, cell, cell_index: int, execute_reply: dict) -> None:
        """Stop if the cell asked for its kernel to end."""
        if any(item.get("source") == "ask_exit" for item in execute_reply["content"].get("payload", [])):
            raise StoppedEarlyError("a cell called quit()")

    def diagnose(self, problem: Exception) -> tuple[str, str]:
        """The status and one line that says what happened."""
        said = next(iter(str(problem).splitlines()), "")[:200]
        code = self.client.exit_code if self.client else None
        match problem:
            case _ if self.stopping == "timeout":
                return "timeout", f"ran longer than {self.job['timeout']} s (--timeout)"
            case _ if self.stopping:
                return "interrupted", "stopped on request"
            case CellTimeoutError():
                return "timeout", f"a cell ran longer than {self.job['cell_timeout']} s (--cell-timeout)"
            case StoppedEarlyError():
                return "stopped early", said
            case CellExecutionError():
                status = "stopped early" if problem.ename == "SystemExit" else "failed"
                return status, f"{problem.ename}: {problem.evalue}".splitlines()[0][:200]
            case RuntimeError() if code is not None and code < 0:
                hint = ", perhaps out of memory" if -code == signal.SIGKILL else ""
                return "kernel died", f"killed by {signal.Signals(-code).name}{hint}"
            case RuntimeError():  # nbclient's DeadKernelError, or a kernel that never came up
                return "kernel died", said if code is None else f"exit code {code}"
        traceback.print_exception(problem)
        return "failed", f"{type(problem).__name__}: {said}"


def last_lines(outputs: list, count: int = 8) -> list[str]:
    """The last lines of what a cell put out, its traceback included."""
    texts = ["\n".join(out.traceback) if "traceback" in out else out.get("text", "") for out in outputs]
    lines = strip_ansi("\n".join(texts)).splitlines()
    return [line[:200] for line in lines if line.strip()][-count:]


def sweep(token: str, patience: float = 0) -> int:
    """End every process that carries the token, wherever it went. Returns how many outlived the patience (s)."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone, or of someone else
            if process.environ().get(TOKEN) == token:
                left.append(process)
    if patience:
        _, left = psutil.wait_procs(left, timeout=patience)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(left)


if __name__ == "__main__":
    events = os.dup(1)
    os.dup2(2, 1)  # what anything prints must not mix with the events
    Child(json.loads(sys.stdin.readline()), events).run()
    sys.stderr.flush()
    os._exit(0)  # no thread or socket may keep it from ending
