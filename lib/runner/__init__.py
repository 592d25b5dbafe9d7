"""Runs the collection: parameters are checked, notebooks executed under supervision, results recorded and compared."""

import sys

# nbformat imports jsonschema, which takes a second to compile a grammar of internet addresses if it finds this
# optional package. Notebooks hold none; without it every start of the runner and of a notebook is that much faster.
sys.modules.setdefault("rfc3987_syntax", None)
