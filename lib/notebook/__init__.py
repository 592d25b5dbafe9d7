"""What every notebook uses: the types of its parameters, claims and their verdicts, results, figures.

    parameters, parameter_types   the parameters cell: read, checked, and the named types in it
    comparison                    what an experiment answers: a table, what was measured, and its control
    claims                        a statement with its prediction, band and control, and its verdict
    results, schema               what a notebook saves, and the form of results.json
    figures                       one style, and the plots that notebooks share
    files, numbers                files written in one go; how numbers and intervals are written
    sources                       which lib it is that runs

May use: lib.tokens, lib.prompts, lib.finite_prompt, lib.regression.
"""
