"""One thread a test process: several run side by side, and threads of theirs would only wait for each other."""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when numpy and torch are first imported, after this file
