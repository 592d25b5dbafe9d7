"""Token measures: what tokens are drawn from, their covariances, and their exponential tilts.

    measure            what a token measure is
    families           the Gaussian, Gaussian mixtures, and bounded measures
    heavy_tails        Laplace and Student t tokens, which have a limit for some queries or none
    covariances        covariance matrices by name, from lists or from a file
    array_file         the arrays of a file, of bounded size
    bessel             ratios of modified Bessel functions, which the sphere needs
    tilted_quadrature  tilted means by brute quadrature, a check of the formulas

May use: nothing of lib.
"""
