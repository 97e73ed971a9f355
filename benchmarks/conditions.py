"""The line that every benchmark prints first: what it ran on."""

import torch

from treeopt.profiler.machine import describe_machine, now, tool


def conditions() -> str:
    machine = describe_machine(torch.device("cpu"))
    return (
        f"{tool()}, {now()}, {machine.processor}, {machine.threads} threads, {machine.system}, "
        f"Python {machine.python}, torch {machine.torch}"
    )
