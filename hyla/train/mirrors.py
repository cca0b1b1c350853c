"""Copy the metrics of a run to TensorBoard and Weights & Biases, beside `metrics.jsonl`.

A mirror imports its package when it is created. It writes nothing before the first record, because
only then is the run folder known to be usable. On any error it warns once and is disabled; training
continues.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from hyla.train.config import RunConfig
from hyla.train.watch import Watcher

if TYPE_CHECKING:
    import wandb
    from torch.utils.tensorboard import SummaryWriter

Tell = Callable[[str], None]


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """Flatten a record into numbers, named by member, split if any, and measure.

    >>> scalars({"step": 9, "member": 2, "split": "train", "loss": 0.5, "by_rule": {"sum": 1}})
    {'member_2/train/loss': 0.5, 'member_2/train/by_rule/sum': 1.0}
    """
    values = {name: value for name, value in record.items() if name not in ADDRESS}
    parts = [f"member_{record['member']}", *([record["split"]] if "split" in record else [])]
    return dict(_flat("/".join(parts), values))


ADDRESS = ("step", "member", "split", "instances")  # fields of a record that are no measures


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)


class Mirror(Watcher):
    """Base class that copies records elsewhere; `tell` receives its messages."""

    title: str

    def __init__(self, folder: Path, config: RunConfig, tell: Tell) -> None:
        self.folder, self.config, self.tell = folder, config, tell
        self.opened = self.failed = False

    def metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Write the records, unless this mirror is disabled."""
        if records:
            self._guarded(lambda: self._metrics(records))

    def close(self) -> None:
        """Write what is still pending."""
        if self.opened:
            self.opened = False
            self._guarded(self._close)

    def _metrics(self, records: Sequence[dict[str, Any]]) -> None:
        if not self.opened:
            self._open(records[0]["step"])
            self.opened = True
        for step, of_step in groupby(records, key=lambda record: int(record["step"])):
            self._write(step, {k: v for record in of_step for k, v in scalars(record).items()})
        self._flush()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Disable the mirror on any error: of network, disk, service or package."""
        if self.failed:
            return
        try:
            action()
        except Exception as error:
            self.failed = True
            reason = " ".join(str(error).split()) or type(error).__name__
            self.tell(f"{self.title} is disabled, training continues: {reason}")

    @abstractmethod
    def _open(self, step: int) -> None:
        """Open the target; `step` is that of the first record."""

    @abstractmethod
    def _write(self, step: int, values: dict[str, float]) -> None:
        """Write the named numbers of a step."""

    def _flush(self) -> None:
        """Flush after each call of `metrics`."""

    @abstractmethod
    def _close(self) -> None:
        """Close the target after the last record."""


class TensorBoardMirror(Mirror):
    """Writes TensorBoard event files to the folder `tensorboard` of the run."""

    title = "TensorBoard"
    writer: "SummaryWriter"

    def __init__(self, folder: Path, config: RunConfig, tell: Tell) -> None:
        import torch.utils.tensorboard  # noqa: F401 - so that a missing package fails here

        super().__init__(folder, config, tell)

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run repeats steps since its checkpoint: discard what was written for them.
        self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)

    def _write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def _flush(self) -> None:
        self.writer.flush()

    def _close(self) -> None:
        self.writer.close()


class WandbMirror(Mirror):
    """Writes a Weights & Biases run, with files in the folder `wandb` of the run.

    `WANDB_MODE=offline` keeps it on this machine until `wandb sync`.
    """

    title = "Weights & Biases"
    run: "wandb.Run"

    def __init__(self, folder: Path, config: RunConfig, tell: Tell, *, project: str) -> None:
        import wandb  # noqa: F401 - so that a missing package fails here

        super().__init__(folder, config, tell)
        self.project = project

    def _open(self, step: int) -> None:
        import wandb

        wanted: dict[str, Any] = {
            "silent": True, "console": "off", "init_timeout": 30, "login_timeout": 30,
            "finish_timeout": 120,
        }  # fmt: skip
        known = {name: v for name, v in wanted.items() if name in wandb.Settings.model_fields}
        self.run = wandb.init(
            project=self.project, dir=str(self.folder), config=self.config.to_dict(),
            id=self._id(), name=self.folder.name, resume="allow", settings=wandb.Settings(**known),
        )  # fmt: skip
        # Its own step counter cannot decrease, but a resumed run repeats steps.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        files = Path(self.run.dir).parent
        place = f"offline; upload with wandb sync {files}" if self.run.offline else self.run.url
        self.tell(f"{self.title}: {place}")

    def _id(self) -> str:
        """Return the id, stored in the run folder so that a resumed run continues it."""
        path = self.folder / "wandb" / "run-id"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(token_hex(8))
        return path.read_text()

    def _write(self, step: int, values: dict[str, float]) -> None:
        self.run.log({"step": step, **values})

    def _close(self) -> None:
        self.run.finish()
