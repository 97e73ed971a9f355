"""The product of few rows with fixed weights: the general one, and oneDNN's with weights reordered once.

    python benchmarks/linear.py

Prints microseconds per product for the shapes of the bundled target, and their ratio; `treeopt.runtime.models.linear` takes
the reordered product for large weights and the general one for small.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from conditions import bar, conditions, say
from torch import Tensor

from treeopt.runtime.models.linear import reordered, reordered_product

SHAPES = ((512, 256), (256, 256), (1408, 256), (256, 704))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 200


def median_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS + 20):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return sorted(times[20:])[REPEATS // 2] * 1e6


def products(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Sequence[Tensor]) -> None:
    for weight in weights:
        product(x, weight)


@torch.inference_mode()
def main() -> None:
    print(conditions())
    print(f"{'weights':>12}{'rows':>6}{'general, us':>14}{'reordered, us':>15}{'ratio':>8}")
    for outputs, inputs in SHAPES:
        weights = [torch.randn(outputs, inputs) for _ in range(8)]  # as many as layers, so that caches are as cold
        columns = [weight.t().contiguous() for weight in weights]
        packed = [each for each in map(reordered, weights) if each is not None]
        if not packed:
            print("this build of torch has no reordered product")
            return
        for rows in bar(ROWS, f"{outputs}x{inputs}"):
            x = torch.randn(rows, inputs)
            general = median_us(partial(products, torch.matmul, x, columns)) / len(columns)
            packed_us = median_us(partial(products, reordered_product, x, packed)) / len(packed)
            say(f"{outputs:>6}x{inputs:<5}{rows:>6}{general:>14.1f}{packed_us:>15.1f}{general / packed_us:>8.2f}")


if __name__ == "__main__":
    main()
