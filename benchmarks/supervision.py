"""What supervision costs: the wall time of one notebook under run_all.py against plain papermill.

    .venv/bin/python benchmarks/supervision.py [--preset paper] [--only 01] [--repeats 3]

Both execute the same notebook with the same parameters on one thread; run_all.py also makes its page, the index and the
record. Prints every pair of times and the median of the ratios; nothing is kept.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def seconds(*command: str | Path, folder: str) -> float:
    start = time.monotonic()
    environment = os.environ | dict.fromkeys(THREADS, "1")
    subprocess.run(list(map(str, command)), cwd=folder, env=environment, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="paper", choices=("paper", "quick"))
    parser.add_argument("--only", default="01", metavar="NN")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    args = parser.parse_args()
    (notebook,) = ROOT.glob(f"notebooks/{args.only}*.ipynb")
    values = ROOT / "params" / args.preset / f"{notebook.stem}.yaml"
    ratios = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            plainly = (sys.executable, "-m", "papermill", notebook, "out.ipynb", "-f", values, "-p", "output_dir", ".")
            plain = seconds(*plainly, folder=folder)
            command = (sys.executable, ROOT / "run_all.py", "--preset", args.preset, "--only", args.only)
            supervised = seconds(*command, "--output-root", folder, folder=folder)
        ratios.append(supervised / plain)
        print(f"papermill {plain:.1f} s, run_all.py {supervised:.1f} s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"{notebook.stem}, {args.preset} preset: median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
