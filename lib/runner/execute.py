"""Supervision: one child process a notebook, several at a time, each of them ended for certain.

A child is asked to stop by closing its stdin, which happens by itself if the supervisor dies. One that does not
comply is killed, and so is whatever carries the token of its kernel. A child that says nothing has failed.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .child import sweep
from .record import keep_notebook

GRACE = 20  # seconds that a child has to end after its deadline or after it was asked to stop
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One notebook to execute in ``folder``; with ``execute`` false only its page is made. Times in seconds."""

    name: str
    folder: Path
    parameters: dict[str, Any]
    timeout: int
    cell_timeout: int
    execute: bool = True


class Running:
    """A child, what it has said so far, and when it will be killed."""

    def __init__(self, job: Job, events: queue.Queue, lock: int):
        self.job, self.events = job, events
        self.outcome: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self.stopping = ""
        self.token = uuid.uuid4().hex
        self.started = time.monotonic()
        self.kill_at = self.started + job.timeout + GRACE
        short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self.scratch = tempfile.mkdtemp(prefix="nb", dir=short)  # the path of a socket has at most 107 characters
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lib.runner.child"],
            cwd=job.folder,
            env=environment(self.scratch),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),  # so that the run stays locked until its last child has ended
        )
        self.tail: deque[bytes] = deque(maxlen=4)
        self.readers = [threading.Thread(target=f, daemon=True) for f in (self._listen, self._overhear)]
        for reader in self.readers:
            reader.start()
        order = asdict(job) | {"folder": ".", "scratch": self.scratch, "token": self.token}
        with contextlib.suppress(OSError):  # if it died at once, its silence will tell
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        with contextlib.suppress(ValueError):  # half a line is the last word of one that was killed
            for line in self.process.stdout:
                self.events.put((self, json.loads(line)))
        self.events.put((self, None))

    def _overhear(self) -> None:
        while chunk := self.process.stderr.read1(8192):
            self.tail.append(chunk)

    def stop(self, reason: str, grace: float = GRACE) -> None:
        self.stopping = self.stopping or reason
        self.kill_at = min(self.kill_at, time.monotonic() + grace)
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> dict[str, Any]:
        """Leave nothing running and return how it went."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        self.kill()
        self.process.wait()
        sweep(self.token)
        for reader in self.readers:
            reader.join(timeout=2)
        self.stop("")
        shutil.rmtree(self.scratch, ignore_errors=True)
        heard = b"".join(self.tail).decode(errors="replace").splitlines()[-8:]
        outcome = self.outcome or {
            "status": self.stopping or "failed",
            "error": f"its process ended without a word (exit code {self.process.returncode})",
            "excerpt": [],
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.job.execute and not self.outcome:
            keep_notebook(self.job.folder / f"{self.job.name}.ipynb", outcome)
        if outcome["status"] != "ok":
            outcome["excerpt"] = outcome["excerpt"] or heard
        return outcome | {"warnings": self.warnings}


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(scratch: str) -> dict[str, str]:
    """Where a child runs: one thread, a fixed hash seed, figures inline, nobody's IPython profile."""
    fixed = {**dict.fromkeys((*THREADS, "NUMEXPR_NUM_THREADS"), "1"), "PYTHONHASHSEED": "0"}
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    return inherited | fixed | {"IPYTHONDIR": f"{scratch}/ipython"}


def supervise(jobs: Iterable[Job], workers: int, lock: int, watcher: Any) -> int:
    """Run all jobs. Returns 0, or the number of the signal (SIGINT, SIGTERM) that stopped it.

    After a signal nothing more starts, and what runs is given time to stop, which a second signal takes away.

    Args:
        workers: how many at a time. lock: the handle that locks the run's folder; each child holds it too.
        watcher: its ``begin(job)`` makes the folder ready; ``section(job, event)`` hears of a new section, with the
            number of the cell and of all cells; ``done(job, outcome)`` hears how a job that was begun has ended.
    """
    waiting, running, events, signals = deque(jobs), set(), queue.Queue(), []
    before = {s: signal.signal(s, lambda number, _: signals.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while running or (waiting and not signals):
            while waiting and len(running) < workers and not signals:
                watcher.begin(waiting[0])
                running.add(Running(waiting.popleft(), events, lock))
            for child in running:
                if signals:
                    child.stop("interrupted", grace=GRACE if len(signals) == 1 else 0)
                if time.monotonic() > child.kill_at:
                    child.stop("timeout")
                    child.kill()
            try:
                child, event = events.get(timeout=0.2)
            except queue.Empty:
                continue
            if event is None:
                running.discard(child)
                watcher.done(child.job, child.finish())
            elif "outcome" in event:
                child.outcome = event["outcome"]
            elif "warning" in event:
                child.warnings.append(event["warning"])
            else:
                watcher.section(child.job, event)
    finally:
        for child in running:
            child.kill()
            child.finish()
        for number, handler in before.items():
            signal.signal(number, handler)
    return signals[0] if signals else 0
