"""`treeopt run --learn`: the draft model learns while it drafts, and may be kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import LEARNING_RATE
from treeopt.cli.outputs import check_folder
from treeopt.errors import InterruptionError

if TYPE_CHECKING:
    from treeopt.runtime.decoding.observer import Observer
    from treeopt.runtime.models.checkpoint import SavedModel
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions:
    """Whether the draft learns, how fast, and where it is kept."""

    learn: bool = field(
        metadata=option(
            "--learn",
            heading=Heading.ADAPTATION,
            is_flag=True,
            help="Have the draft model learn from the target while it drafts: the text stays the target's, and comes "
            "faster where the draft was often wrong.",
        )
    )
    learning_rate: float | None = field(
        metadata=option(
            "--learning-rate",
            heading=Heading.ADAPTATION,
            type=LEARNING_RATE,
            help="With --learn, step of its optimizer; by default 0.0001.",
        )
    )
    save_draft: Path | None = field(
        metadata=option(
            "--save-draft",
            heading=Heading.ADAPTATION,
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="With --learn, folder to save the draft in, in Hugging Face layout.",
        )
    )

    def check(self, *, force: bool) -> None:
        """Raise click.UsageError for options without --learn, TreeoptError for a folder that cannot be written."""
        for name, value in (("--learning-rate", self.learning_rate), ("--save-draft", self.save_draft)):
            if value is not None and not self.learn:
                raise click.UsageError(f"{name}: expected --learn with it. Got none: add it.")
        if self.save_draft is not None:
            check_folder(self.save_draft, force=force)

    @contextmanager
    def observer(self, models: "ModelPair", planned: "TreeFile") -> "Iterator[Observer | None]":
        """Offer what has the draft of a pair learn, None where it stays as it is; then keep it, and say what was learnt.

        Raises click.UsageError where something else than the draft model drafts, InfeasibleError for a draft whose weights
        cannot be changed, TreeoptError where it cannot be kept.
        """
        if not self.learn:
            yield None
            return
        _check_drafter(planned)
        from treeopt.runtime.learning.learner import Learner, LearningSettings

        settings = LearningSettings() if self.learning_rate is None else LearningSettings(rate=self.learning_rate)
        saved = self._saved(models)
        learner = Learner(models.draft_model, settings, save=None if saved is None else saved.save)
        try:
            yield learner
        except KeyboardInterrupt:
            if saved is None or not learner.stats.updates:
                raise
            raise InterruptionError(
                f"interrupted. {saved.path} holds the draft as it was last saved; --draft {saved.path} --force goes on from there."
            ) from None
        if saved is not None:
            saved.save()
        click.echo(learner.stats, err=True)
        if saved is not None:
            click.echo(f"draft: saved in {saved.path}", err=True)

    def _saved(self, models: "ModelPair") -> "SavedModel | None":
        if self.save_draft is None:
            return None
        from treeopt.runtime.learning.learner import built_in
        from treeopt.runtime.models.checkpoint import SavedModel
        from treeopt.runtime.models.pair import draft_folder

        return SavedModel(built_in(models.draft_model), draft_folder(models), self.save_draft)


def _check_drafter(planned: "TreeFile") -> None:
    setting = planned.drafter
    if setting is not None and (setting.name not in ("eagle2", "specexec") or setting.eagle_head):
        raise click.UsageError(
            f"--learn: expected a plan in which the draft model drafts. Got one for {setting.name}: leave --learn out."
        )
