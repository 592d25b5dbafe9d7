"""Experiments of notebook 04: in-context regression with an anisotropic covariance, one module an idea.

setting         the regressions: covariances by name and a random one, and those of the authors' public driver
infinite_flow   the infinite prompt: the optimum, the flow that ends there, and its modes
finite_prompts  risks of attention and of ridge, the critical dimension, shrinkage, unseen covariances
training        where the population flow ends at each prompt length
"""
