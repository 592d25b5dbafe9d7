"""What exactness costs: the exact inverse participation against sampling it to one percent, side by side in one run.

Prints the ratio of both times for a few (s, L); absolute times mean little on a shared machine.
"""

from time import perf_counter

import numpy as np

from lib.finite_prompt.weight_moments import softmax_functionals


def seconds(call) -> float:
    """The best of three."""
    times = []
    for _ in range(3):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def sampled(s: float, length: int, accuracy: float = 0.01) -> float:
    """The inverse participation from prompts, as many as one percent takes (estimated from the first thousand)."""
    rng = np.random.default_rng(0)

    def draw(n):
        weights = np.exp(s * rng.standard_normal((n, length)))
        return ((weights / weights.sum(1, keepdims=True)) ** 2).sum(1)

    first = draw(1000)
    needed = int((first.std() / first.mean() / accuracy) ** 2)
    rest = [draw(1000).mean() for _ in range(max(0, needed // 1000 - 1))]
    return float(np.mean([first.mean(), *rest]))


if __name__ == "__main__":
    print(f"{'s':>4} {'L':>6} {'sampled / exact time':>21} {'sampled / exact value':>22}")
    for s in (0.5, 1.0, 2.0):
        for length in (100, 1000):
            exact = softmax_functionals(s, length).inverse_participation
            ratio = seconds(lambda s=s, n=length: sampled(s, n)) / seconds(
                lambda s=s, n=length: softmax_functionals(s, n)
            )
            print(f"{s:4} {length:6} {ratio:21.0f} {sampled(s, length) / exact:22.4f}")
    grid = seconds(lambda: softmax_functionals(np.linspace(0, 8, 100)[:, None], np.round(np.logspace(0, 15, 20))))
    single = seconds(lambda: softmax_functionals(4.0, 1000))
    print(f"100 values of s times 20 lengths cost {grid / single:.0f} times one value")
