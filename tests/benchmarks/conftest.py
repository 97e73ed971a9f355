"""The profiler's toy models, and one of the runtime's as a folder."""

from tests.profiler.conftest import draft, make_model, prompts, target
from tests.runtime.conftest import make_checkpoint, target_folder

__all__ = ["draft", "make_checkpoint", "make_model", "prompts", "target", "target_folder"]
