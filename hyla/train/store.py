"""All results: published ones in `results/`, local ones in `runs/`.

Nothing is ever overwritten. A repeated training has several records, since repetitions differ in
rounding; `Store.get` always returns the same one: the first that was published, or else trained.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hyla.errors import bad_value
from hyla.files import read_object
from hyla.records import check_schema, decode, read_records
from hyla.tasks.base import TaskConfig
from hyla.train.config import RunConfig
from hyla.train.runs import METRICS, SUMMARY, folders, read_config, read_id, read_state
from hyla.train.training import Training, digest

TRAININGS, ANALYSES = "trainings.jsonl", "analyses.jsonl"
PRECISIONS = ("tf32", "fp32", "bf16", "fp16")  # accepted where none is demanded


@dataclass(frozen=True)
class Origin:
    """Where and when something was computed."""

    date: str = ""  # of its end, ISO 8601
    device: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    seconds: float | None = None  # of the whole population


@dataclass(frozen=True)
class Search:
    """How hyperparameters were chosen: the best of `settings` by the mean over `seeds`."""

    settings: int
    seeds: int


@dataclass(frozen=True)
class Trained:
    """The result of a training, identified by key, run and member.

    description: what the key is a hash of. loss: the training loss at the end. evaluation: measures
    by split. curves: the main held-out measure and the training loss over steps.
    chosen: the search that chose this setting, if the other settings are not kept.
    pinned: takes precedence over repetitions, because a published number rests on it.
    path: its run folder; None for a published training.
    """

    key: str
    run: str
    member: int
    description: dict[str, Any]
    loss: float | None = None
    diverged_at: int | None = None
    evaluation: dict[str, dict[str, Any]] = field(default_factory=dict)
    curves: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    origin: Origin = Origin()
    chosen: Search | None = None
    pinned: bool = False
    path: Path | None = field(default=None, compare=False)

    @property
    def precision(self) -> str:
        """Of its matrix products."""
        return str(self.description["precision"])

    def measure(self, split: str, name: str) -> Any:
        """A measure on a split; None if it diverged or was not measured."""
        return self.evaluation.get(split, {}).get(name)


@dataclass(frozen=True)
class Entry:
    """One result of an analysis: a row, or one seed of a row.

    axes: what distinguishes it from the other entries. measures: numbers by name, fractions in
    percent. errors: known standard errors of measures that are not repeated over seeds.
    details: more numbers, by group and name. picture: what is drawn, such as a map or a matrix.
    """

    axes: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float | None] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    details: dict[str, dict[str, float | None]] = field(default_factory=dict)
    picture: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Analysed:
    """What was measured on the weights of a training or on the data of a task.

    key: of the training or task. analysis, settings: what was measured and how.
    run: the repetition that was analysed. frozen: its weights are not kept, so it cannot be
    recomputed.
    """

    key: str
    analysis: str
    settings: dict[str, Any]
    values: tuple[Entry, ...]
    run: str = ""
    origin: Origin = Origin()
    frozen: bool = False


class Store:
    """All results by key.

    problems: why local run folders were left out.
    """

    def __init__(
        self, published: Iterable[Trained], local: Iterable[Trained], analysed: Iterable[Analysed]
    ) -> None:
        self.published, self.local = tuple(published), tuple(local)
        self.problems: dict[Path, str] = {}
        self._trained: dict[str, Trained] = {}
        self._order: dict[str, int] = {}  # of preference, by key
        # Published ones by their lines, not by their dates: no later line changes what is shown.
        first = sorted(self.published, key=lambda one: not one.pinned)
        for one in (*first, *sorted(self.local, key=_age)):
            self._order.setdefault(one.key, len(self._order))
            self._trained.setdefault(one.key, one)
        self.analysed = tuple(analysed)
        self._analysed: dict[str, Analysed] = {}
        for found in self.analysed:
            place = _place(found.key, found.analysis, found.settings)
            self._analysed.setdefault(place, found)

    @classmethod
    def open(cls, runs: Path | None, results: Path | None) -> "Store":
        """Read the union of a folder of runs and a folder of published results."""
        published: list[Trained] = []
        analysed: list[Analysed] = []
        if results is not None:
            for number, one in enumerate(read_records(results / TRAININGS, Trained), start=1):
                if digest(one.description) != one.key:
                    expected = f"the key {digest(one.description)}, by its description"
                    place = f"{results / TRAININGS}, record {number}"
                    raise bad_value(place, one.key, expected)
                published.append(one)
            analysed += read_records(results / ANALYSES, Analysed)
        local: list[Trained] = []
        problems: dict[Path, str] = {}
        if runs is not None:
            for path in folders(runs):
                try:
                    local += read_run(path)
                except (OSError, ValueError, LookupError) as error:
                    problems[path] = f"{path} is left out: {error}"
            analysed += read_records(runs / ANALYSES, Analysed)
        store = cls(published, local, analysed)
        store.problems = problems
        return store

    def get(self, training: Training, precision: str | None = None) -> Trained | None:
        """Return the result of a training with this precision, or with any but fp64.

        Pinned results come first, then the one that was published first, then the oldest local
        one; never the best.
        """
        precisions = (precision,) if precision else PRECISIONS
        keys = [replace(training, precision=one).key for one in precisions]
        found = [key for key in keys if key in self._order]
        return self._trained[min(found, key=self._order.__getitem__)] if found else None

    def analysis(self, key: str, analysis: str, settings: Mapping[str, Any]) -> Analysed | None:
        """Return an analysis of a training or task, if it was made with these settings."""
        return self._analysed.get(_place(key, analysis, settings))


def _age(one: Trained) -> tuple[str, str, int]:
    return one.origin.date, one.run, one.member


def _place(key: str, analysis: str, settings: Mapping[str, Any]) -> str:
    return json.dumps([key, analysis, settings], sort_keys=True)


def read_run(path: Path) -> list[Trained]:
    """Read the members of a run folder; none if it has not come to its end."""
    state = read_state(path)
    if state.state == "damaged":
        raise ValueError(state.problem)
    if state.state not in ("finished", "diverged"):
        return []
    summary, (values, environment) = read_object(path / SUMMARY), read_config(path)
    check_schema(summary, str(path / SUMMARY))
    config = RunConfig.from_dict(values)
    members = decode(
        tuple[dict[str, Any], ...], summary.get("members"), f"{path / SUMMARY}: members"
    )
    if len(members) != len(config.members):
        raise bad_value(str(path / SUMMARY), f"{len(members)} members", f"{len(config.members)}")
    versions = {name: environment.get(name) for name in ("hyla", "torch", "python", "cuda")}
    origin = {"date": summary.get("date", ""), "device": environment.get("device") or ""}
    origin |= {"versions": versions, "seconds": summary.get("seconds")}
    found = []
    for number, (member, result) in enumerate(zip(config.members, members, strict=True)):
        training = Training.of(config, member)
        record = {name: result.get(name) for name in ("loss", "diverged_at")}
        record |= {"evaluation": result.get("evaluation") or {}, "origin": origin}
        record |= {"key": training.key, "run": read_id(path)}
        record |= {"member": number, "description": training.description}
        trained: Trained = decode(Trained, record, f"{path / SUMMARY}: members[{number}]")
        found.append(replace(trained, path=path))
    return found


def with_curves(one: Trained, task: type[TaskConfig]) -> Trained:
    """Turn a local training into a published one, with the curve of its main measure."""
    assert one.path is not None
    lines = (one.path / METRICS).read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r["member"] == one.member]
    loss = {r["step"]: r["loss"] for r in records if "split" not in r and "loss" in r}
    name = task.measures[0].name
    held_out = {r["step"]: r[name] for r in records if r.get("split") == task.headline}
    curves = {
        "step": tuple(float(step) for step in held_out),
        "held_out": tuple(held_out.values()),
        "loss": tuple(loss.get(step) for step in held_out),
    }
    return replace(one, path=None, curves={name: _rounded(line) for name, line in curves.items()})


def _rounded(values: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.5g}") for value in values)
