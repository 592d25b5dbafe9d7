"""Softmax attention as a kernel."""

from dataclasses import dataclass

import numpy as np

from lib.kernels.interface import AttentionKernel, Cost
from lib.prompts.batches import batches

SCORES_IN_MEMORY = 2**22


@dataclass(frozen=True)
class Softmax(AttentionKernel):
    """Softmax attention, exact: ``sum_i p_i v_i``, p = softmax(keys . query), by PyTorch.

    State: the keys and values themselves. Temporary memory: blocks of prompts of at most 4 million scores, or one
    prompt.
    """

    def attend(self, keys, queries, values):
        from torch import from_numpy
        from torch.nn.functional import scaled_dot_product_attention

        n, length, _ = keys.shape
        queries = np.broadcast_to(queries, (n, *queries.shape[1:]))
        outputs = np.empty((n, queries.shape[1], values.shape[-1]))
        for part in batches(n, length * queries.shape[1], SCORES_IN_MEMORY):
            block = (from_numpy(np.array(x[part])) for x in (queries, keys, values))
            outputs[part] = scaled_dot_product_attention(*block, scale=1.0).numpy()
        return outputs

    def cost(self, length, key_dim, value_dim):
        return Cost(0, length * (2 * key_dim + 2 * value_dim + 1), length * (key_dim + value_dim), 0)
