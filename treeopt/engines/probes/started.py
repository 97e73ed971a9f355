"""What engines that treeopt starts have in common: versions, threads, models, and that some tell everything of each text."""

from importlib.metadata import PackageNotFoundError, version

from treeopt.engines.probes.client import Counters, Launch
from treeopt.errors import EngineError
from treeopt.records.engine import EngineSetting


def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed here; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def threads_setting(threads: int | None) -> tuple[EngineSetting, ...]:
    """Return the number of threads as a setting; none where it is left to the engine."""
    return () if threads is None else (EngineSetting(name="threads", value=str(threads)),)


def refuse_address(name: str, url: str | None) -> None:
    """Raise EngineError for the address of an engine that runs in this process."""
    if url is not None:
        raise EngineError(f"{name}: expected no --url, because it runs in this process. Leave it out.")


def both_models(name: str, launch: Launch) -> tuple[str, str]:
    """Return target and draft; raises EngineError where one is not named."""
    if launch.target is None or launch.draft is None:
        raise missing_models(name)
    return launch.target, launch.draft


def missing_models(name: str) -> EngineError:
    """Return the error for an engine that was not given its models."""
    return EngineError(f"{name}: expected two models. Got one or none: give --target and --draft.")


class InProcess:
    """A `Running` in this process, loaded once for all lengths, that tells everything of each text."""

    def counters(self) -> Counters | None:
        return None

    def close(self) -> None:
        """See `Running`: what is loaded serves other lengths too."""
