"""Runs the collection: parameters are checked, notebooks executed under supervision, results recorded and compared.

    params                  what will run, all of it checked before any kernel starts
    session                 a run from start to end, and its exit code
    files, records          the folders of runs, and what is read back from them
    machine, fingerprint    what a run ran on, and whether a kept result is still valid
    execute                 one child process a notebook, each of them ended for certain
    child, kernel           inside the child: papermill made strict, and the truth about how it went
    compare                 a run against another, within tolerances
    report, terminal        what is said on the terminal, and that a broken one costs no results
    index, pages            the page of a run, the pages of its notebooks

It knows nothing of the mathematics: results are what a notebook writes to results.json.

May use: lib.notebook.
"""

import sys

# nbformat imports jsonschema, which takes a second to compile a grammar of internet addresses if it finds this
# optional package. Notebooks hold none; without it every start of the runner and of a notebook is that much faster.
sys.modules.setdefault("rfc3987_syntax", None)
