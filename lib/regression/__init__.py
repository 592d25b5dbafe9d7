"""In-context linear regression: exact risks of heads in block form, the best of them, and how they are trained.

Training on raw prompts (``sgd``) needs torch, and is imported from its module.

May use: lib.tokens, lib.prompts, lib.finite_prompt.
"""

from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead, Prompts
from lib.regression.predictors import linear_head, ridge, ridge_risk, risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression

__all__ = [
    "BlockHead",
    "Flow",
    "InContextRegression",
    "Prompts",
    "best_linear",
    "best_softmax",
    "gradient_flow",
    "linear_head",
    "ridge",
    "ridge_risk",
    "risks_on_prompts",
    "softmax_head",
]
