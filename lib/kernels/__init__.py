"""Attention kernels: softmax, and what may replace it. One place to import them from.

    Softmax                             exact, by PyTorch's scaled_dot_product_attention
    MomentAttention, LinearAttention    the prompt's first two moments: what softmax is in the large-prompt limit
    Performer                           positive random features (:mod:`lib.kernels.performer`)
    Linformer                           keys and values projected along the length (:mod:`lib.kernels.linformer`)

All are called alike, ``kernel(keys, query, values)``; shapes are in :mod:`lib.kernels.interface`.

May use: lib.tokens, lib.prompts, lib.finite_prompt.

>>> import numpy as np
>>> tokens, z, U = np.random.default_rng(0).standard_normal((1000, 4)), np.ones(4) / 4, np.eye(4)
>>> K, Q = split(U, key_scale=0.5)  # U = K'Q; only Performer cares how
>>> keys, query, values = project(tokens, z, K, Q, V=np.eye(4))
>>> exact = Softmax()(keys, query, values)
>>> [float(np.linalg.norm(f(keys, query, values) - exact).round(3)) for f in (MomentAttention(), Performer(256))]
[0.015, 0.273]
"""

from lib.kernels.interface import AttentionKernel, Cost, StreamingKernel, project, split
from lib.kernels.linformer import Linformer
from lib.kernels.moment import LinearAttention, MomentAttention, MomentState
from lib.kernels.performer import Performer
from lib.kernels.softmax import Softmax

__all__ = [
    "AttentionKernel",
    "Cost",
    "LinearAttention",
    "Linformer",
    "MomentAttention",
    "MomentState",
    "Performer",
    "Softmax",
    "StreamingKernel",
    "project",
    "split",
]
