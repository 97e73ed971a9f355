"""Looking at everything, each thing once."""

import os
import platform

from treeopt.doctor.facts import Facts, Load, Torch
from treeopt.doctor.host import describe_host
from treeopt.doctor.installed import describe_engines, describe_packages
from treeopt.doctor.torch_facts import describe_torch
from treeopt.version import __version__


def examine() -> Facts:
    """Return what this machine and installation are; takes half a second of watching other programs."""
    host, torch = describe_host(), describe_torch()
    return Facts(
        treeopt=__version__,
        python=platform.python_version(),
        host=host,
        torch=torch,
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        packages=describe_packages(),
        engines=describe_engines(),
        load=_load(torch),
    )


def _load(torch: Torch) -> Load:
    """Return what other programs use, which is measured beside torch."""
    if torch.version is None:
        return Load(sight=None, disturbs=False)
    try:
        from treeopt.profiler.latency.programs import look
    except ImportError:  # of another package that is missing, which is told
        return Load(sight=None, disturbs=False)
    sight = look()
    threads = 1 if torch.devices else torch.threads or 1
    return Load(sight=None if sight.load is None else str(sight), disturbs=sight.disturbs(threads))
