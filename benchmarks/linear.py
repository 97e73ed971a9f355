"""The product of few rows with fixed weights: the general one, and oneDNN's with weights reordered once.

    python benchmarks/linear.py

Prints microseconds per product for the shapes of the bundled target, and their ratio; `treeopt.runtime.linear` takes
the general product for one row and the reordered one for more.
"""

import time
from collections.abc import Callable

import torch
from conditions import conditions

from treeopt.runtime.linear import reordered, reordered_product

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


@torch.inference_mode()
def main() -> None:
    print(conditions())
    print(f"{'weights':>12}{'rows':>6}{'general, us':>14}{'reordered, us':>15}{'ratio':>8}")
    for outputs, inputs in SHAPES:
        weights = [torch.randn(outputs, inputs) for _ in range(8)]  # as many as layers, so that caches are as cold
        columns = [weight.t().contiguous() for weight in weights]
        packed = [reordered(weight) for weight in weights]
        if packed[0] is None:
            print("this build of torch has no reordered product")
            return
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            general = median_us(lambda x=x, columns=columns: [x @ c for c in columns]) / len(columns)
            packed_us = median_us(lambda x=x, packed=packed: [reordered_product(x, p) for p in packed]) / len(packed)
            print(f"{outputs:>6}x{inputs:<5}{rows:>6}{general:>14.1f}{packed_us:>15.1f}{general / packed_us:>8.2f}")


if __name__ == "__main__":
    main()
