"""Notebook 05: what may replace softmax, at what error and at what cost. One module a section.

moments             moment attention on Gaussian tokens: prompts against exact errors
token_measures      where it fails: tokens that are not centered, or not Gaussian
random_features     Performer: kernel values, and how U is split into K and Q
projections         Linformer: fixed and learned projections of the length
costs               operations, memory, wall time
choice              which kernel at which prompt length and score deviation
swaps               another kernel in a head that was trained with softmax
retrieval           a task that linear attention must lose
"""
