"""Experiments of notebook 02: how fast finite prompts concentrate on the limit.

on_prompts    errors of the output and of both gradients at one query, and their sharp constants
over_queries  averages over queries: their rate, and the shape of the paper's bound
thresholds    an explicit bound, and the two lengths at which a prompt stops being short
"""
