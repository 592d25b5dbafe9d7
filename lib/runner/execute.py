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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from lib.runner.child import sweep
from lib.runner.files import keep_notebook

LIBRARY = Path(__file__).resolve().parents[2]  # where lib lies
GRACE = 20  # seconds that a child has to end after it was asked to stop
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def supervise(names: Iterable[str], execute: Callable[..., Awaitable], workers: int) -> int:
    """Await ``execute(name, stop, kill)`` for all names, several at a time.

    The first SIGINT or SIGTERM sets ``stop``, after which nothing more starts, the second one ``kill``. Returns the
    number of the first signal, or 0.
    """
    signals, stop, kill, waiting = [], asyncio.Event(), asyncio.Event(), iter(names)

    def hear(number: int) -> None:
        (kill if signals else stop).set()
        signals.append(number)

    async def work() -> None:
        for name in waiting:
            if not signals:
                await execute(name, stop, kill)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, hear, number)
    await asyncio.gather(*(work() for _ in range(workers)))
    return signals[0] if signals else 0


async def run(
    order: dict[str, Any], folder: Path, lock: int, stop: asyncio.Event, kill: asyncio.Event, say: Callable
) -> dict[str, Any]:
    """One notebook from start to end, whatever happens. Returns how it went.

    Args:
        order: for the child: name, parameters, timeout and cell_timeout (seconds).
        lock: the handle that locks the run's folder; the child holds it too, so that it is free when all have ended.
        say: is told each new section.
    """
    start, token, reason = time.monotonic(), uuid.uuid4().hex, ""
    outcome = {"status": "", "error": "", "excerpt": [], "warnings": []}
    wanted = os.path.abspath(tempfile.gettempdir())
    short = wanted if len(wanted) < 60 else "/tmp"  # the path of a socket has at most 107 characters
    scratch = tempfile.mkdtemp(prefix="nb", dir=short)
    with open(f"{scratch}/stderr", "wb") as errors:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "lib.runner.child"),
            cwd=folder,
            env=environment(scratch),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            pass_fds=(lock,),
            limit=2**24,
        )
    listening = asyncio.create_task(listen(child.stdout, outcome, say))
    try:
        child.stdin.write(json.dumps(order | {"scratch": scratch, "token": token}).encode() + b"\n")
        if not await ended(listening, stop, order["timeout"]):
            reason = "interrupted" if stop.is_set() else "timeout"
            child.stdin.write(reason.encode() + b"\n")
            await ended(listening, kill, GRACE)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        sweep(token)
        with open(errors.name, errors="replace") as file:
            heard = [line.rstrip()[:200] for line in deque(file, maxlen=8)]
        shutil.rmtree(scratch, ignore_errors=True)
    await listening
    if not outcome["status"]:
        error = f"its process ended without a word (exit code {child.returncode})"
        outcome |= {"status": reason or "failed", "error": error, "seconds": round(time.monotonic() - start, 3)}
    keep_notebook(folder / f"{order['name']}.ipynb", outcome)  # if the child could not do it
    if outcome["status"] != "ok":
        outcome["excerpt"] = outcome["excerpt"] or heard
    return outcome


def environment(scratch: str) -> dict[str, str]:
    """Where a child runs: the lib of its supervisor, one thread, a fixed hash seed, UTF-8, nobody's settings."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "PYTHONIOENCODING")}
    path = os.pathsep.join([str(LIBRARY), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited |= {"TMPDIR": os.path.abspath(tempfile.gettempdir())}  # it may be relative, and a child runs elsewhere
    if "MPLCONFIGDIR" not in inherited and not os.access(Path.home(), os.W_OK):  # else matplotlib says so in pages
        inherited["MPLCONFIGDIR"] = f"{inherited['TMPDIR']}/matplotlib-{os.getuid()}"
    fixed = {"PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONHASHSEED": "0", "IPYTHONDIR": f"{scratch}/ipython"}
    return inherited | dict.fromkeys(SINGLE, "1") | fixed


async def listen(events: asyncio.StreamReader, outcome: dict[str, Any], say: Callable) -> None:
    """Gather what a child says until it ends."""
    with contextlib.suppress(ValueError):  # half a line is the last word of one that was killed
        async for line in events:
            event = json.loads(line)
            if "warning" in event:
                outcome["warnings"].append(event["warning"])
            elif "section" in event:
                say(event["section"])
            else:
                outcome |= event


async def ended(listening: asyncio.Task, alarm: asyncio.Event, seconds: float) -> bool:
    """Whether a child ends in time and before the alarm."""
    waiting = asyncio.create_task(alarm.wait())
    await asyncio.wait({listening, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return listening.done()
