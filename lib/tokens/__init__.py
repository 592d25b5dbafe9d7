"""Token measures: what tokens are drawn from, their covariances, and their exponential tilts.

May use: nothing of lib.
"""
