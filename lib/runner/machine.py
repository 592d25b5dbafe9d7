"""What a run ran on; nothing that tells whose machine it is or where things lie on it."""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil


def describe(root: Path) -> dict[str, Any]:
    """The commit, Python, platform, machine, device and packages of a run, as run.json holds them."""
    git = ("git", "--no-optional-locks", "-C", str(root))
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text() if cpuinfo.exists() else "", flags=re.M)
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    installed = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "commit": _output(*git, "rev-parse", "HEAD") or None,
        "dirty": bool(_output(*git, "status", "--porcelain")),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": {
            "cpu": cpu[1] if cpu else platform.machine(),
            "cores": psutil.cpu_count(),
            "memory_GiB": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "device": (", ".join(gpus) if os.environ.get("CUDA_VISIBLE_DEVICES") != "" else "") or "cpu",
        "versions": dict(sorted(installed.items())),
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
