"""`treeopt run --learn`: the draft model learns from the target while it drafts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.record import option, refuse_options
from treeopt.cli.options.values import SHARE
from treeopt.cli.outputs import check_folder
from treeopt.errors import InterruptionError
from treeopt.trees import TreeFile

if TYPE_CHECKING:
    from treeopt.runtime.decoding.observer import Observer
    from treeopt.runtime.models.pair import ModelPair


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    learn: bool = option(
        "--learn",
        is_flag=True,
        help="Train the draft model on the target's tokens while it drafts. The output stays the target's; decoding "
        "becomes faster where the draft was often wrong.",
    )
    learning_rate: float | None = option(
        "--learning-rate", type=SHARE, help="Learning rate of the draft model, with --learn; by default 0.0001."
    )
    save_draft: Path | None = option(
        "--save-draft",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder to save the trained draft model in, with --learn, in Hugging Face format.",
    )

    def check(self, *, force: bool) -> None:
        """Raise click.UsageError for options without --learn, TreeoptError for a folder that cannot be written."""
        if not self.learn:
            refuse_options(["learning_rate", "save_draft"], "expected --learn with it. Got none: add it.")
        if self.save_draft is not None:
            check_folder(self.save_draft, force=force)


@contextmanager
def learn_while_decoding(args: LearnOptions, models: "ModelPair", planned: TreeFile) -> "Iterator[Observer | None]":
    """Yield the observer that trains the draft model, or None without `--learn`; afterwards save it and print statistics.

    Raises click.UsageError for a plan of another drafter, InfeasibleError for weights that cannot be trained, and
    TreeoptError if the model cannot be saved.
    """
    if not args.learn:
        yield None
        return
    drafter = planned.drafter
    if drafter is not None and (drafter.name not in ("eagle2", "specexec") or drafter.eagle_head):
        raise click.UsageError(
            f"--learn: expected a plan in which the draft model drafts. Got one for {drafter.name}: leave --learn out."
        )
    from treeopt.runtime.learning.learner import Learner, LearningSettings, built_in_model
    from treeopt.runtime.models.checkpoint import CheckpointWriter

    settings = LearningSettings() if args.learning_rate is None else LearningSettings(rate=args.learning_rate)
    saved = None
    if args.save_draft is not None:
        draft = built_in_model(models.draft_model)
        assert models.draft_folder is not None  # it was loaded
        saved = CheckpointWriter(draft, models.draft_folder, args.save_draft)
    learner = Learner(models.draft_model, settings, save=None if saved is None else saved.save)
    try:
        yield learner
    except KeyboardInterrupt:
        if saved is None or not learner.stats.updates:
            raise
        raise InterruptionError(
            f"interrupted. {saved.path} contains the draft model as last saved; continue with --draft {saved.path} --force."
        ) from None
    if saved is not None:
        saved.save()
    click.echo(learner.stats, err=True)
    if saved is not None:
        click.echo(f"draft: saved in {saved.path}", err=True)
