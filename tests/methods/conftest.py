"""The profiler's toy models."""

from tests.profiler.conftest import draft, make_model, prompts, target

__all__ = ["draft", "make_model", "prompts", "target"]
