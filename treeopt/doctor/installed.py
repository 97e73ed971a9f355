"""Which packages and engines are installed; none of them is imported."""

from importlib.metadata import PackageNotFoundError, requires, version

from treeopt.doctor.facts import EngineFound, Package
from treeopt.engines.probes.named import availabilities

OPTIONAL = {
    "transformers": ("other architectures, quantised models, engine transformers", "hf"),
    "accelerate": ("models over several devices, or offloaded", "hf"),
    "gguf": ("GGUF models", "gguf"),
    "llama-cpp-python": ("GGUF models", "gguf"),
    "xllamacpp": ("engine llama-server", "engines"),
}
"""What treeopt does without, what for, and the extra that brings it."""


def required_names() -> tuple[str, ...]:
    """Return the names of the packages that treeopt itself needs, as its metadata list them."""
    try:
        lines = requires("treeopt") or []
    except PackageNotFoundError:  # a source tree that was never installed
        lines = []
    return tuple(sorted(_name(line) for line in lines if ";" not in line))


def describe_packages() -> tuple[Package, ...]:
    """Return what treeopt needs, and after it what only something optional needs."""
    needed = [_package(name, "treeopt", "pip install treeopt") for name in required_names()]
    optional = [
        _package(name, purpose, f'pip install "treeopt[{extra}]"') for name, (purpose, extra) in OPTIONAL.items()
    ]
    return (*needed, *optional)


def describe_engines() -> tuple[EngineFound, ...]:
    """Return the engines that can be probed."""
    return tuple(
        EngineFound(name=each.name, version=each.version, started=each.started, install=each.install)
        for each in availabilities()
    )


def _package(name: str, purpose: str, install: str) -> Package:
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    return Package(name=name, version=found, needed_for=purpose, install=install)


def _name(requirement: str) -> str:
    """Return the name that a requirement begins with.

    >>> _name("numpy>=2.0"), _name("prometheus-client (>=0.20)")
    ('numpy', 'prometheus-client')
    """
    ends = [place for mark in " <>=!~([;" if (place := requirement.find(mark)) >= 0]
    return requirement[: min(ends, default=len(requirement))]
