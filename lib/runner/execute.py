"""Supervision: one child process a notebook, several at a time, each of them ended for certain.

A child is asked to stop by a word on its stdin, or by its end if the supervisor dies. One that does not comply is
killed, and so is whatever carries the token of its kernel. A child that says nothing has failed.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .child import sweep
from .record import keep_notebook

GRACE = 20  # seconds that a child has to end after it was asked to stop
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One notebook to execute in ``folder``. Times in seconds."""

    name: str
    folder: Path
    parameters: dict[str, Any]
    timeout: int
    cell_timeout: int


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(scratch: str) -> dict[str, str]:
    """Where a child runs: one thread, a fixed hash seed, figures inline, nobody's IPython profile."""
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    fixed = {**dict.fromkeys(SINGLE, "1"), "PYTHONHASHSEED": "0", "IPYTHONDIR": f"{scratch}/ipython"}
    return inherited | fixed


async def supervise(jobs: Iterable[Job], workers: int, lock: int, watcher: Any) -> int:
    """Run all jobs. Returns 0, or the number of the signal (SIGINT, SIGTERM) that stopped it.

    After a signal nothing more starts, and what runs is given time to stop, which a second signal takes away.

    Args:
        workers: how many at a time. lock: the handle that locks the run's folder; each child holds it too.
        watcher: its ``begin(job)`` makes the folder ready; ``section(job, event)`` hears of a new section, with the
            number of the cell and of all cells; ``done(job, outcome)`` hears how a job that was begun has ended.
    """
    signals, stop, kill = [], asyncio.Event(), asyncio.Event()

    def hear(number: int) -> None:
        (kill if signals else stop).set()
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, hear, number)
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            if not signals:
                watcher.begin(job)
                watcher.done(job, await run(job, lock, stop, kill, watcher.section))

    await asyncio.gather(*(work() for _ in range(workers)))
    return signals[0] if signals else 0


async def run(job: Job, lock: int, stop: asyncio.Event, kill: asyncio.Event, on_section: Callable) -> dict[str, Any]:
    """One job from start to end, whatever happens. Returns how it went, as in status.json."""
    start, token, reason = time.monotonic(), uuid.uuid4().hex, ""
    outcome = {"status": "", "error": "", "excerpt": [], "warnings": []}
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
    scratch = tempfile.mkdtemp(prefix="nb", dir=short)  # the path of a socket has at most 107 characters
    with open(f"{scratch}/stderr", "w+b") as errors:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "lib.runner.child"),
            cwd=job.folder,
            env=environment(scratch),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            pass_fds=(lock,),  # so that the run stays locked until its last child has ended
            limit=2**24,
        )
        listening = asyncio.create_task(listen(child.stdout, outcome, lambda event: on_section(job, event)))
        try:
            order = asdict(job) | {"folder": ".", "scratch": scratch, "token": token}
            child.stdin.write(json.dumps(order).encode() + b"\n")
            if not await ended(listening, stop, job.timeout):
                reason = "interrupted" if stop.is_set() else "timeout"
                child.stdin.write(reason.encode() + b"\n")
                await ended(listening, kill, GRACE)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            sweep(token)
            heard = Path(errors.name).read_text(errors="replace")
            shutil.rmtree(scratch, ignore_errors=True)
    await listening
    if not outcome["status"]:
        error = f"its process ended without a word (exit code {child.returncode})"
        outcome |= {"status": reason or "failed", "error": error, "seconds": round(time.monotonic() - start, 3)}
    keep_notebook(job.folder / f"{job.name}.ipynb", outcome)  # if the child could not do it
    if outcome["status"] != "ok" and not outcome["excerpt"]:
        outcome["excerpt"] = heard.splitlines()[-8:]
    return outcome


async def listen(events: asyncio.StreamReader, outcome: dict[str, Any], on_section: Callable) -> None:
    """Gather what a child says until it ends."""
    with contextlib.suppress(ValueError):  # half a line is the last word of one that was killed
        async for line in events:
            event = json.loads(line)
            if "warning" in event:
                outcome["warnings"].append(event["warning"])
            elif "outcome" in event:
                outcome |= event["outcome"]
            else:
                on_section(event)


async def ended(listening: asyncio.Task, alarm: asyncio.Event, seconds: float) -> bool:
    """Whether a child ends in time and before the alarm."""
    waiting = asyncio.create_task(alarm.wait())
    await asyncio.wait({listening, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return listening.done()
