"""The code of each notebook: a module or a folder named like it, one function a section of the notebook.

An experiment takes keyword arguments and answers with a :class:`lib.notebook.comparison.Comparison`. What several
notebooks share is in ``settings``.

May use: lib.tokens, lib.prompts, lib.finite_prompt, lib.kernels, lib.regression, lib.notebook.
"""
