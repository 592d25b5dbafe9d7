"""Runs the collection: parameters are checked, notebooks executed under supervision, results recorded and compared."""
