"""The toy models that the tests of the runtime use."""

from tests.runtime.conftest import (  # noqa: F401 - fixtures
    chi_squared,
    draft,
    greedy_text,
    logits_after,
    make_checkpoint,
    target,
    target_folder,
)
