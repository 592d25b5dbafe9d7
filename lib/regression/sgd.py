r"""Stochastic gradient training of one attention head on raw prompts of in-context regression.

Every step draws fresh prompts. Several seeds, and softmax beside linear attention on the same prompts, are trained as
one tensor program. A head is trained through one of three sets of parameters, D = d + 1 the dimension of a token:

    {A, b}           U = [[A, 0], [0, 0]], last row of V = (0, b)
    {U, V}           all D x D entries of both
    {Q, K, V, O}     U = K' Q / sqrt(D), and O V for V, as in the authors' code

The loss is the squared error of the last coordinate, halved. It depends on the tokens only through the attended mean m
of the prompt and its derivative by the tilt, a covariance C: prompts are reduced to these as they are drawn.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch.nn.functional import pad

from lib.regression.head import Attention, BlockHead, check_length
from lib.regression.hessian import infinite_hessian, stable_step
from lib.regression.task import InContextRegression, check_whitened

NUMBERS_IN_MEMORY = 2**20  # random numbers of one seed reduced at a time
DIVERGED = 1e4  # a batch loss this many times that of predicting zero


@dataclass(frozen=True)
class Block:
    """The parameters A, shape (..., d, d), and b, shape (...), of heads in block form."""

    A: torch.Tensor
    b: torch.Tensor

    def effective(self) -> tuple[torch.Tensor, torch.Tensor]:
        """U without its last column, which meets the query's zero, (..., D, d), and the last row of V, (..., D)."""
        return pad(self.A, (0, 0, 0, 1)), pad(self.b[..., None], (self.A.shape[-1], 0))


@dataclass(frozen=True)
class Full:
    """The parameters U and V, shape (..., D, D) each."""

    U: torch.Tensor
    V: torch.Tensor

    def effective(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As for :class:`Block`."""
        return self.U[..., :-1], self.V[..., -1, :]


@dataclass(frozen=True)
class Factored:
    """The parameters Q, K, V and O, shape (..., D, D) each."""

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    O: torch.Tensor  # noqa: E741 (the name that everybody uses)

    def effective(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As for :class:`Block`: U = K' Q / sqrt(D), and O V for V."""
        U = self.K.mT @ self.Q[..., :-1] / self.Q.shape[-1] ** 0.5
        return U, (self.O[..., -1:, :] @ self.V)[..., 0, :]


Parameters = Block | Full | Factored
KINDS = {frozenset(field.name for field in fields(kind)): kind for kind in (Block, Full, Factored)}


@dataclass(frozen=True)
class Training:
    """What a training run went through, at its checkpoints.

    Attributes:
        attention: the arms, in the order of the first axis below.
        length, step_size: of the run.
        step: steps taken at each checkpoint, shape (n_checkpoints,), in geometric progression after 0.
        parameters: by name, each of shape (n_arms, n_seeds, n_checkpoints, ...).
    """

    attention: tuple[Attention, ...]
    length: int
    step_size: float
    step: np.ndarray
    parameters: dict[str, np.ndarray]

    @property
    def time(self) -> np.ndarray:
        """Flow time, step size x steps."""
        return self.step_size * self.step

    def heads(self) -> tuple[np.ndarray, np.ndarray]:
        """U restricted to the query's x, and the last row of V: (n_arms, n_seeds, n_checkpoints, D, d) and (..., D)."""
        tensors = {name: torch.from_numpy(value) for name, value in self.parameters.items()}
        U, v = KINDS[frozenset(tensors)](**tensors).effective()
        return U.numpy(), v.numpy()

    @property
    def in_block(self) -> bool:
        """Whether the heads are in block form, (A, b)."""
        return KINDS[frozenset(self.parameters)] is Block


class TrainingDiverged(RuntimeError):
    """The loss exploded. ``partial`` is the Training up to the last checkpoint before."""

    def __init__(self, message: str, partial: Training):
        super().__init__(message)
        self.partial = partial


def block_start(head: BlockHead) -> dict[str, np.ndarray]:
    """The two parameters of a head in block form."""
    return {"A": np.asarray(head.A, float), "b": np.asarray(head.b, float)}


def full_start(head: BlockHead) -> dict[str, np.ndarray]:
    """All of U and V, at a head in block form: their flow stays in the block and is that of (A, b)."""
    return {"U": np.pad(head.A, (0, 1)), "V": _corner(head.b, len(head.A) + 1)}


def factored_start(head: BlockHead) -> dict[str, np.ndarray]:
    """Q, K, V, O at a head in block form, balanced: K' Q / sqrt(D) = A with equal singular values, O V = b."""
    size = len(head.A) + 1
    left, values, right = np.linalg.svd(head.A)
    root = np.sqrt(values * np.sqrt(size))[:, None]
    corner = _corner(np.sqrt(head.b), size)
    return {"Q": np.pad(root * right, (0, 1)), "K": np.pad(root * left.T, (0, 1)), "V": corner, "O": corner.copy()}


def default_start(dimension: int, rng) -> dict[str, np.ndarray]:
    """Q, K, V, O as torch initializes linear layers, uniform on +- 1 / sqrt(D): the authors' start."""
    size = dimension + 1
    return {name: rng.uniform(-1, 1, (size, size)) / np.sqrt(size) for name in "QKVO"}


def train(
    problem: InContextRegression,
    length: int,
    start: dict[str, np.ndarray] | list[dict[str, np.ndarray]],
    *,
    step_size: float,
    n_steps: int,
    rngs: list[np.random.Generator],
    batch: int = 64,
    attention: tuple[Attention, ...] = ("softmax", "linear"),
    n_checkpoints: int = 20,
    measure=None,
) -> Training:
    """Stochastic gradient descent on fresh prompts, for several seeds at once.

    Args:
        problem: the task. length: L, tokens a prompt.
        start: parameters by name (see the module), the same for every seed, or a list with those of each.
        step_size, n_steps: flow time is their product.
        rngs: one numpy Generator a seed; everything that a seed sees comes from its own.
        batch: prompts a step and seed. attention: "softmax", "linear" or both, on the same prompts.
        n_checkpoints: how many, about.
        measure: law of x before Sigma^{1/2}, see :meth:`InContextRegression.sample`; standard normal if omitted. Normal
            numbers have the resolution of single precision (none exceeds 5.8) and everything else is double.

    Returns:
        Training. Its exact risks are those of :func:`lib.regression.head_risk.checkpoint_risks`.

    Raises:
        TrainingDiverged: when a batch's loss is not finite or explodes. ValueError: if an argument does not fit.

    Cost: n_steps * n_seeds * batch * length * (d + 1) random numbers, which is most of the time: at d = 5, for 8 seeds
    of 64 prompts and both arms, 18 ms a step at 800 tokens, 6 ms at 200 and 3.5 ms at 50.
    """
    parameters = _parameters(problem, start, attention, len(rngs))
    length = int(check_length(length))
    if not (step_size > 0 and n_steps >= 0 and batch >= 1):
        raise ValueError(f"step_size {step_size:g}, n_steps {n_steps} and batch {batch} must be positive")
    if measure is not None:
        check_whitened(measure, problem.dimension)
    prompts = _Prompts(problem, length, batch, attention, rngs, measure)
    checkpoints = np.unique(np.append(0, np.geomspace(1, max(n_steps, 1), n_checkpoints).round()))
    checkpoints = checkpoints[checkpoints <= n_steps].astype(int)
    saved = []
    largest = DIVERGED * problem.task_variance * np.trace(problem.query_covariance) / 2

    def copied():
        return {f.name: getattr(parameters, f.name).detach().numpy().copy() for f in fields(parameters)}

    def result():
        stacked = {name: np.stack([state[name] for state in saved], 2) for name in saved[0]}
        return Training(tuple(attention), length, step_size, checkpoints[: len(saved)], stacked)

    values = [getattr(parameters, field.name) for field in fields(parameters)]
    for step in range(n_steps):
        if step == checkpoints[len(saved)]:
            saved.append(copied())
        losses = prompts.losses(*parameters.effective())
        if not losses.detach().max() < largest:  # also if not a number
            raise TrainingDiverged(_advice(problem, step_size, step, parameters), result())
        gradients = torch.autograd.grad(losses.sum(), values)
        with torch.no_grad():
            for value, gradient in zip(values, gradients, strict=True):
                value -= step_size * gradient
    saved.append(copied())
    return result()


class _Prompts:
    """Draws prompts and reduces them. Tokens are z = G e, e white, G = [[Sigma^{1/2}, 0], [w' Sigma^{1/2}, noise]]."""

    def __init__(self, problem, length, batch, attention, rngs, measure):
        self.problem, self.length, self.batch, self.attention = problem, length, batch, attention
        self.rngs, self.measure = rngs, measure
        self.generators = [torch.Generator().manual_seed(int(rng.integers(2**63))) for rng in rngs]
        self.root = torch.from_numpy(problem.covariance_root)
        # A seed's prompts are drawn so many at a time, whatever the number of seeds; several seeds are reduced at once.
        size = problem.dimension + 1
        self.rows = max(1, min(batch, NUMBERS_IN_MEMORY // (length * size)))
        self.group = max(1, min(len(rngs), NUMBERS_IN_MEMORY // (self.rows * length * size)))
        shape = self.group, self.rows, size, length
        self.single = torch.empty(shape, dtype=torch.float32)
        self.white, self.weighted = (torch.empty(shape, dtype=torch.float64) for _ in range(2))
        self.scores = torch.empty(self.group, self.rows, 1, length, dtype=torch.float64)

    def losses(self, U, v) -> torch.Tensor:
        """Half the mean squared error over a fresh batch, shape (n_arms, n_seeds)."""
        d, seeds = self.problem.dimension, len(self.rngs)
        normal = np.stack([rng.standard_normal((self.batch, d)) for rng in self.rngs])
        w = torch.from_numpy(np.sqrt(self.problem.task_variance) * normal)
        query = np.stack([self._query(rng) for rng in self.rngs]) @ self.problem.query_root
        query = torch.from_numpy(query)
        tilt = self._whiten(torch.einsum("asij,sbj->asbi", U, query), w)  # G' U x_q
        with torch.no_grad():
            groups = [self._reduce(tilt[:, k : k + self.group], k) for k in range(0, seeds, self.group)]
            mean, covariance = (torch.cat(parts, 1) for parts in zip(*groups, strict=True))
        mean = mean + torch.einsum("asbij,asbj->asbi", covariance, tilt - tilt.detach())  # value m, derivative C
        prediction = (self._whiten(v[:, :, None].expand_as(mean), w) * mean).sum(-1)
        return ((prediction - (query * w).sum(-1)) ** 2).mean(-1) / 2

    def _whiten(self, direction, w):
        """G' direction, so that direction . z = (G' direction) . e."""
        x, y = direction[..., :-1], direction[..., -1:]
        return torch.cat([(x + w * y) @ self.root, self.problem.noise_std * y], -1)

    def _query(self, rng):
        if self.measure is None:
            return rng.standard_normal((self.batch, self.problem.dimension))
        return self.measure.sample(self.batch, 1, rng)[:, 0]

    def _reduce(self, tilt, first: int):
        """Attended mean of fresh e and its derivative by the tilt, for the seeds from ``first`` on.

        The tilt is of shape (n_arms, n_seeds, batch, D), and so is the mean; the derivative has one more axis.
        """
        blocks = [self._reduce_block(part, first) for part in tilt.split(self.rows, 2)]
        return tuple(torch.cat(parts, 2) for parts in zip(*blocks, strict=True))

    def _reduce_block(self, tilt, first: int):
        _, seeds, rows, _ = tilt.shape
        for k in range(seeds):
            self.single[k, :rows].normal_(generator=self.generators[first + k])
        white, weighted, p = (x[:seeds, :rows] for x in (self.white, self.weighted, self.scores))
        white.copy_(self.single[:seeds, :rows])
        if self.measure is not None:
            for k in range(seeds):
                x = self.measure.sample(rows, self.length, self.rngs[first + k])
                white[k, :, :-1] = torch.from_numpy(x).mT
        means, covariances = [], []
        for kind, direction in zip(self.attention, tilt, strict=True):
            if kind == "linear":
                covariance = white @ white.mT / self.length
                mean = (covariance @ direction[..., None])[..., 0]
            else:
                torch.matmul(direction[..., None, :], white, out=p)
                p.sub_(p.amax(-1, keepdim=True)).exp_().div_(p.sum(-1, keepdim=True))
                torch.mul(white, p, out=weighted)
                mean = weighted.sum(-1)
                covariance = weighted @ white.mT - mean[..., None] * mean[..., None, :]
            means.append(mean)
            covariances.append(covariance)
        return torch.stack(means), torch.stack(covariances)


def _parameters(problem, start, attention, n_seeds: int) -> Parameters:
    """The start as tensors with axes for arms and seeds, once it fits."""
    starts = start if isinstance(start, list) else [start] * n_seeds
    if n_seeds == 0 or len(starts) != n_seeds:
        raise ValueError(f"expected a start for each of {n_seeds} seeds, received {len(starts)}")
    if not attention or not set(attention) <= {"softmax", "linear"}:
        raise ValueError(f"attention must name 'softmax', 'linear' or both, received {attention}")
    kind = KINDS.get(frozenset(starts[0]))
    if kind is None or any(KINDS.get(frozenset(one)) is not kind for one in starts):
        known = " or ".join(f"({_names(one)})" for one in KINDS.values())
        raise ValueError(f"parameters must be {known}, received ({', '.join(starts[0])})")
    d = problem.dimension
    shapes = {"A": (d, d), "b": ()}
    tensors = {}
    for name in (field.name for field in fields(kind)):
        value, shape = np.stack([np.asarray(one[name], float) for one in starts]), shapes.get(name, (d + 1, d + 1))
        if value.shape[1:] != shape:
            raise ValueError(f"{name} must have shape {shape}, received {value.shape[1:]}")
        tensors[name] = torch.from_numpy(np.stack([value] * len(attention))).requires_grad_()
    return kind(**tensors)


def _names(kind) -> str:
    return ", ".join(field.name for field in fields(kind))


def _advice(problem, step_size: float, step: int, parameters: Parameters) -> str:
    stable = stable_step(infinite_hessian(problem, problem.optimum()))
    through = "" if isinstance(parameters, Block) else f"; through ({_names(parameters)}) it may have to be smaller"
    return (
        f"training diverged at step {step} with step size {step_size:g}: the infinite-prompt optimum is stable for "
        f"steps below {stable:.3g} (2 / largest eigenvalue of the Hessian in (A, b)){through}; try {stable / 10:.2g}"
    )


def _corner(value: float, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    matrix[-1, -1] = value
    return matrix
