"""Softmax attention in the large-prompt regime: the library behind the notebooks.

    tokens         token measures and their covariances
    prompts        attention on prompts of tokens, and errors measured on them
    finite_prompt  the exact theory of prompts of L tokens
    kernels        what may replace softmax
    regression     in-context linear regression: exact risks, flows, training
    notebook       what every notebook uses: parameters, claims, results, figures
    experiments    the code of each notebook, by its name
    runner         what run_all.py is made of; it knows nothing of attention

A package uses only those that its own first lines name, and no arrow goes back up (a test).
"""
