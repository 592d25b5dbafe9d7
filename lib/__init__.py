"""Softmax attention in the large-prompt regime: the library behind the notebooks."""
