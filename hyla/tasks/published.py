"""The presets of the paper's tasks: its text, and the code of its authors, which differs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hyla.tasks.base import AS_DESCRIBED, Preset

AS_PUBLISHED = "as_published"


def as_published(run: Any) -> Any:
    """Return a run as the published code trains it, where the paper's text says less or otherwise.

    >>> from hyla.train import task_run
    >>> task_run("sraven", preset="as_published").model.attention_dropout
    0.1
    """
    return replace(
        run,
        task=replace(run.task, published_splits=True),
        model=replace(run.model, attention_dropout=0.1),
        decay_head_biases=True,
        schedule="early_cosine",
    )


PRESETS: Mapping[str, Preset] = {AS_DESCRIBED: lambda run: run, AS_PUBLISHED: as_published}
