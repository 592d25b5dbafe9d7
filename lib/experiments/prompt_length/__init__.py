"""Experiments of notebook 06: how many tokens a prompt needs, one module a section.

needed        exact lengths at one query: the U shape, the best scores, a few hundred tokens, what moves them
on_prompts    the same measured on prompts of the needed length, and Markov's guarantee
over_queries  averaged over queries, where the coupling decides
drift         how far an output moves while its prompt grows
causal        causal self-attention, whose position is a prompt length
heads         what the theory says of heads from a file, and the rounding errors of low precision
few_shot      how many examples an in-context regression needs
"""
