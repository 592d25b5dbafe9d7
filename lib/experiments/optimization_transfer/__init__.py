"""Experiments of notebook 07: do the tools of linear attention serve when softmax is trained?

steps       the largest stable step, the edge of stability, and the race of step rules with exact gradients
variance    the linear gradient as control variate: its mean, and by how much it divides the variance
on_prompts  training on raw prompts: step rules, and the prompts that a control variate saves
lengths     which prompt length to train at
"""
