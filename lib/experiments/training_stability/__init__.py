"""Notebook 03: does the closeness of softmax to its infinite-prompt limit survive training? One module a section.

flows              softmax flows against the infinite one: linear response, and a Gronwall envelope
gradients          errors of both gradients along a flow, exact and on prompts
risk_limit         the risk at the end of training, and the prompt length that it asks for
parametrizations   stochastic training through (U, V) and (Q, K, V, O), started in the block
random_starts      the same from random matrices, and the minima of the exact risk below the trained heads
exchanged          the head that exchanges x and y, a saddle, and the mixed head below it
other_tokens       stochastic training with tokens that are not Gaussian
parameters         where the parameters go: the two limits do not commute, and what linear attention conserves

Stochastic training of (A, b) is :func:`lib.experiments.stochastic_training.sgd_checkpoints`.
"""
