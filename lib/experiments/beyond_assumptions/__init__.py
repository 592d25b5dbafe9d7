"""Experiments of notebook 08: what the paper assumes, dropped one by one.

other_laws   independent tokens that are not Gaussian: their own limits, where the linear map ends, no limit at all
dependence   prompts whose tokens depend on each other: AR(1), Markov, exchangeable, long memory
dimensions   constants in high dimension: what must stay fixed
pairs        heads in pairs of opposite signs
depth        several layers and heads, with and without normalization
scores       tokens that are not centered, scores that grow with the prompt
"""
