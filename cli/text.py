"""Numbers as the commands print them."""

from treeopt.latency import Estimate


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, three digits.

    >>> milliseconds(0.0012345)
    '1.23'
    """
    return f"{1000 * seconds:#.3g}".rstrip(".")


def spread(estimate: Estimate, scale: float = 1.0) -> str:
    """Return a number with its 95 % interval.

    >>> spread(Estimate(1.5, 1.4, 1.62))
    '1.50 (1.40-1.62)'
    """
    value, low, high = (scale * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"
