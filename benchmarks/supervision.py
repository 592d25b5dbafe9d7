"""What supervision costs: the wall time of notebooks under run_all.py against plain papermill.

    .venv/bin/python benchmarks/supervision.py [--preset paper] [--only 01 ...] [--repeats 1]

Both execute the same notebooks with the same parameters on one thread, one after the other; run_all.py also makes their
pages, the index and the record. Prints every pair of times and the ratio of the totals; nothing is kept.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def seconds(*command: str | Path, folder: str) -> float:
    """The wall time of a command in a folder, on one thread."""
    start = time.monotonic()
    environment = os.environ | dict.fromkeys(THREADS, "1")
    subprocess.run(list(map(str, command)), cwd=folder, env=environment, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    """Time both, notebook by notebook."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="paper", choices=("paper", "quick"))
    parser.add_argument("--only", nargs="+", default=[""], metavar="NN", help="all notebooks if omitted")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    args = parser.parse_args()
    chosen = [path for path in sorted(ROOT.glob("notebooks/*.ipynb")) if path.name.startswith(tuple(args.only))]
    totals = [0.0, 0.0]
    for notebook in chosen * args.repeats:
        values = ROOT / "params" / args.preset / f"{notebook.stem}.yaml"
        with tempfile.TemporaryDirectory() as folder:
            plainly = (sys.executable, "-m", "papermill", notebook, "out.ipynb", "-f", values, "-p", "output_dir", ".")
            plain = seconds(*plainly, folder=folder)
            command = (sys.executable, ROOT / "run_all.py", "--preset", args.preset, "--only", notebook.stem[:2])
            supervised = seconds(*command, "--output-root", folder, folder=folder)
        totals = [totals[0] + plain, totals[1] + supervised]
        print(f"{notebook.stem}: papermill {plain:.1f} s, run_all.py {supervised:.1f} s", flush=True)
    print(f"{args.preset} preset, {len(chosen)} notebooks: ratio {totals[1] / totals[0]:.3f}")


if __name__ == "__main__":
    main()
