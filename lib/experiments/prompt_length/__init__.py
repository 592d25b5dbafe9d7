"""Experiments of notebook 06: how many tokens a prompt needs, one module a section.

needed        exact lengths at one query: the U shape, the best scores, what a budget buys, what moves them
laws          the needed length for small tolerances to the next order, and for loud scores
on_prompts    the deviation on prompts of the needed length, and the share of prompts beyond a tolerance
tail          the law of the deviation of long prompts
over_queries  averaged over queries, where the coupling decides
drift         how far an output moves while its prompt grows
causal        causal self-attention, whose position is a prompt length
own_token     its exact error: the query is one of the tokens
heads         what the theory says of heads from a file, and prompts with their covariance
rounding      the rounding errors of low precision
few_shot      how many examples an in-context regression needs
"""
