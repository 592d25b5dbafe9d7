"""The supervised child: executes one notebook, exports its page, and says truthfully how it went.

``execute.py`` starts it in the notebook's output folder with the job as one JSON line on stdin. The pipe then stays
open: its end means stop, whether the supervisor wants that or died. Events go back as JSON lines on stdout; whatever
a kernel or a library prints goes to stderr.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from . import kernel, pages
from .params import headings
from .record import keep_notebook, partial

TOKEN = "RUN_ALL_TOKEN"  # in the environment of a kernel and of all that it starts, so that nothing is left behind


class Child:
    """One job from start to end: what is known of it while other threads watch the clock and the pipe."""

    def __init__(self, job: dict, channel: int):
        self.job, self.channel = job, channel
        self.client: kernel.Client | None = None
        self.cell: int | None = None  # the one being executed
        self.section: str | None = None
        self.stopping = ""  # why: timeout or interrupted
        self.executed = not job["execute"]

    def run(self) -> None:
        clock = threading.Timer(self.job["timeout"], self.stop, ["timeout"])
        pipe = threading.Thread(target=lambda: (sys.stdin.read(), self.stop("interrupted")))
        for thread in (clock, pipe):
            thread.daemon = True
            thread.start()
        target = Path(f"{self.job['name']}.ipynb")
        if not self.executed:
            outcome = self.execute(target)
            left = sweep(self.job["token"], patience=1)
            self.emit(outcome=outcome)
            if left:
                self.emit(warning=f"it left {left} running process(es), which have been ended")
            keep_notebook(target, outcome, self.cell)
            self.executed = True
        try:
            for warning in pages.export(target):
                self.emit(warning=warning)
        except Exception as error:
            self.emit(warning=f"its page was not made: {type(error).__name__}: {error}")

    def execute(self, target: Path) -> dict:
        """Run the cells. Returns the status, a line on what went wrong, the last lines of output, and the time."""
        job, start, problem = self.job, time.monotonic(), None
        try:
            kernel.execute(
                partial(target),
                job["parameters"],
                keep=lambda client: setattr(self, "client", client),
                name=job["name"],
                scratch=job["scratch"],
                environment={**os.environ, TOKEN: job["token"]},
                options={
                    "timeout": job["cell_timeout"],
                    "iopub_timeout": 60,  # a flood of output may arrive well after the cell is done,
                    "raise_on_iopub_timeout": False,  # and if its end is lost, that is worth a warning
                    "on_cell_execute": self.on_cell,
                    "on_cell_executed": self.on_reply,
                },
            )
        except Exception as error:
            problem = error
        status, error = self.diagnose(problem)
        if problem and self.cell is not None:
            error += f" [cell {self.cell + 1} of {len(self.client.nb.cells)}, section {self.section!r}]"
        excerpt = self.excerpt() if problem else []
        return {"status": status, "error": error, "excerpt": excerpt, "seconds": round(time.monotonic() - start, 3)}

    def diagnose(self, problem: Exception | None) -> tuple[str, str]:
        """The status and, unless all is well, one line that says what happened."""
        if problem is None:
            return "ok", ""
        if self.stopping == "timeout":
            return "timeout", f"ran longer than {self.job['timeout']} s (--timeout)"
        if self.stopping:
            return "interrupted", "stopped on request"
        if isinstance(problem, CellTimeoutError):
            return "timeout", f"a cell ran longer than {self.job['cell_timeout']} s (--cell-timeout)"
        if isinstance(problem, kernel.StoppedEarlyError):
            return "stopped early", str(problem)
        if isinstance(problem, CellExecutionError):
            status = "stopped early" if problem.ename == "SystemExit" else "failed"
            return status, f"{problem.ename}: {problem.evalue}".splitlines()[0]
        if isinstance(problem, RuntimeError):  # nbclient's DeadKernelError, or a kernel that never came up
            code = self.client.exit_code if self.client else None
            if code is not None and code < 0:
                hint = ", perhaps out of memory" if -code == signal.SIGKILL else ""
                return "kernel died", f"killed by {signal.Signals(-code).name}{hint}"
            return "kernel died", str(problem) if code is None else f"exit code {code}"
        traceback.print_exception(problem)
        return "failed", f"{type(problem).__name__}: {problem}".splitlines()[0]

    def stop(self, reason: str) -> None:
        """Called by a watching thread: end the kernel, which ends the execution; a page is just given up."""
        self.stopping = self.stopping or reason
        if self.executed:
            self.emit(warning=f"its page was not made: {reason}")
            os._exit(0)
        sweep(self.job["token"])

    def emit(self, **event) -> None:
        with contextlib.suppress(OSError):  # the supervisor may be dead; what is on disk stays true
            os.write(self.channel, (json.dumps(event) + "\n").encode())

    def on_cell(self, cell, cell_index: int) -> None:
        self.cell = cell_index
        section = list(headings(self.client.nb))[cell_index]
        if section != self.section:
            self.section = section
            self.emit(section=section, cell=cell_index + 1, cells=len(self.client.nb.cells))
        if self.stopping:
            raise kernel.StoppedEarlyError

    def on_reply(self, cell, cell_index: int, execute_reply: dict) -> None:
        if "iopub.status.idle" not in cell.metadata.execution:
            self.emit(warning=f"some output of cell {cell_index + 1} was lost")
        if any(item.get("source") == "ask_exit" for item in execute_reply["content"].get("payload", [])):
            raise kernel.StoppedEarlyError("a cell called quit()")

    def excerpt(self, lines: int = 8) -> list[str]:
        """The last lines of what the failed cell put out, its traceback included."""
        outputs = self.client.nb.cells[self.cell].outputs if self.cell is not None else []
        texts = ["\n".join(out.traceback) if "traceback" in out else out.get("text", "") for out in outputs]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts))
        return [line[:200] for line in plain.splitlines() if line.strip()][-lines:]


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


def main() -> None:
    channel = os.dup(1)
    os.dup2(2, 1)  # what anything prints must not mix with the events
    job = json.loads(sys.stdin.readline())
    Child(job, channel).run()
    sys.stderr.flush()
    shutil.rmtree(job["scratch"], ignore_errors=True)
    os._exit(0)  # no thread or socket may keep it from ending


if __name__ == "__main__":
    main()
