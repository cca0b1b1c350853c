"""The seam for tasks: a toy task from outside, the checks, metrics, and evaluation of any model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import hyla
from hyla import random
from hyla.analysis import collect_run
from hyla.errors import bad_value
from hyla.experiments.rows import rows, shown_measures
from hyla.experiments.spec import Plan, Point
from hyla.model import ModelConfig
from hyla.tasks import (
    Label,
    Measure,
    Recipe,
    Split,
    Task,
    TaskConfig,
    TaskError,
    check,
    register_metric,
    register_task,
)
from hyla.tasks.address import instance_index, seed_tensor
from hyla.tasks.base import FIRST_EVALUATION_INSTANCE, FIRST_VALIDATION_INSTANCE, Predict
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.recall import RecallConfig
from hyla.tasks.sraven import SravenConfig, accuracy
from hyla.train import RunConfig, task_run, train
from hyla.train.store import Store


@register_task("toy")
@dataclass(frozen=True)
class ToyConfig(TaskConfig):
    """The sign of the mean of some numbers.

    size: how many numbers.
    """

    size: int = 5
    measures: ClassVar[tuple[Measure, ...]] = (Measure("hits"),)

    @property
    def tokens(self) -> int:
        return self.size

    @property
    def model_sizes(self) -> dict[str, Any]:
        return {"inputs": "continuous", "input_size": 1, "output_size": 1}

    @property
    def splits(self) -> Mapping[str, Split]:
        return {
            "train": Split("train", "training numbers"),
            "held_out": Split("held_out", "new numbers"),
            "validation": Split("train", first=FIRST_VALIDATION_INSTANCE, selects=True),
        }

    def recipe(self) -> Recipe:
        model = ModelConfig(1, 1, layers=1, width=8, heads=2, head_size=2, hidden_size=8)
        return Recipe(model, steps=30, batch=8, warmup=3, evaluation_instances=37)

    def bind(self, seed: int | Sequence[int], device: torch.device | str | None = None) -> "Toy":
        return Toy(self, seed, device)


@dataclass(frozen=True)
class ToyBatch:
    inputs: Tensor
    positive: Tensor


class Toy(Task):
    sum_names = ("loss", "hits")

    def __init__(self, config: ToyConfig, seed: Any, device: Any = None) -> None:
        self.config, self.seed = config, seed_tensor(seed, device)

    def batch(self, split: str, index: Tensor) -> ToyBatch:
        if split not in ("train", "held_out"):
            raise bad_value("split", split, "train or held_out")
        blocks = torch.arange(-(-self.config.tokens // 4), device=self.seed.device)
        stream = int(split == "held_out")
        index = instance_index(index, self.seed.device).unsqueeze(-1)
        words = random.words(self.seed.unsqueeze(-1), index, blocks, stream).flatten(-2)
        inputs = random.uniform(words[..., : self.config.tokens]) - 0.5
        return ToyBatch(inputs.unsqueeze(-1), (inputs.mean(dim=-1) > 0).float())

    def outputs(self, model: Predict, batch: ToyBatch) -> Tensor:
        return model(batch.inputs, last=1)[..., 0, 0]

    def loss(self, outputs: Tensor, batch: ToyBatch) -> Tensor:
        return self._losses(outputs, batch).mean(dim=-1)

    def tally(self, outputs: Tensor, batch: ToyBatch) -> Tensor:
        hits = (outputs > 0) == (batch.positive > 0)
        return torch.stack([self._losses(outputs, batch).double(), hits.double()], dim=-1)

    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        return {name: sums[name] / sums["instances"] for name in self.sum_names}

    def labels(self, outputs: Tensor, batch: ToyBatch) -> dict[str, Label]:
        return {"sign": Label(batch.positive.long(), ("-", "+"), ("decode",))}

    @staticmethod
    def _losses(outputs: Tensor, batch: ToyBatch) -> Tensor:
        function = nn.functional.binary_cross_entropy_with_logits
        return function(outputs, batch.positive.to(outputs.dtype), reduction="none")


SMALL = {
    "toy": ToyConfig(size=5),
    "sraven": SravenConfig(features=2, values=5),
    "fuzzy_logic": FuzzyLogicConfig(variables=3, examples=7),
    "recall": RecallConfig(vocabulary=32, pairs=4, least_pairs=2, length=19),
}


@pytest.mark.parametrize("task", SMALL.values(), ids=SMALL)
def test_all_tasks_keep_the_rules(task: TaskConfig) -> None:
    check(task)


def test_a_task_from_outside_is_trained_measured_and_looked_at(tmp_path: Path) -> None:
    config = task_run(ToyConfig(size=3), steps=30, evaluate_every=10, interim_instances=11)
    config = replace(config, splits=("train", "held_out", "validation"))
    assert RunConfig.from_json(config.to_json()) == config
    summary = train(config, tmp_path / "run", device="cpu", compiled=False)
    measured = summary["members"][0]["evaluation"]
    assert 0 <= measured["held_out"]["hits"] <= 1
    model = hyla.load(tmp_path / "run")
    found = hyla.evaluate(model, config.task, instances=37, batch=10)
    for split in ("train", "held_out", "validation"):
        for name in ("loss", "hits"):
            assert found[split][name] == pytest.approx(measured[split][name], rel=1e-5)
    codes = collect_run(tmp_path / "run", 0, "held_out", 11)
    assert codes.codes.shape == (1, 11, 2)
    assert codes.labels_to("decode") == ["sign"]
    point = Point({"a": 1}, config)
    (row,) = rows(point, Plan(seeds=1), Store.open(tmp_path, None))
    assert list(row.measures) == ["new numbers", "training numbers", "training loss"]
    assert row.main.mean == pytest.approx(100 * measured["held_out"]["hits"])


class Impure(Toy):
    def batch(self, split: str, index: Tensor) -> ToyBatch:
        batch = super().batch(split, index)
        return replace(batch, inputs=batch.inputs + torch.rand(()))


class Dependent(Toy):
    def batch(self, split: str, index: Tensor) -> ToyBatch:
        batch = super().batch(split, index)
        return replace(batch, inputs=batch.inputs - batch.inputs.mean(dim=-3, keepdim=True))


class OneSeed(Toy):
    def __init__(self, config: ToyConfig, seed: Any, device: Any = None) -> None:
        super().__init__(config, seed, device)
        self.seed = torch.zeros_like(self.seed) + self.seed.flatten()[-1]


class ReadsBack(Toy):
    def loss(self, outputs: Tensor, batch: ToyBatch) -> Tensor:
        scale = 2.0 if batch.positive.sum().item() > 3 else 1.0
        return scale * super().loss(outputs, batch)


class OneLoss(Toy):
    def loss(self, outputs: Tensor, batch: ToyBatch) -> Tensor:
        return super().loss(outputs, batch).mean()


class WrongSums(Toy):
    sum_names = ("loss", "hits", "misses")


class NotAMean(Toy):
    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        return super().measure(sums) | {"hits": sums["hits"] / 7}


class NoMeasure(Toy):
    def measure(self, sums: Mapping[str, float]) -> dict[str, Any]:
        return {"loss": 0.0}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (Impure, "pure"),
        (Dependent, "depends on the others"),
        (OneSeed, "member of a population"),
        (ReadsBack, "graph"),
        (OneLoss, "loss"),
        (WrongSums, "tally"),
        (NotAMean, "not a mean"),
        (NoMeasure, "missing"),
    ],
)
def test_what_a_task_does_wrong_is_said(wrong: type[Toy], problem: str) -> None:
    @dataclass(frozen=True)
    class Wrong(ToyConfig):
        def bind(self, seed: Any, device: Any = None) -> Toy:
            return wrong(self, seed, device)

    Wrong.task_name = "wrong"
    with pytest.raises(TaskError) as caught:
        check(Wrong())
    assert any(problem in one for one in caught.value.problems), caught.value.problems


def test_a_metric_shows_up_in_evaluation_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyConfig, "metrics", {})

    @register_metric("toy")
    def confident(outputs: Tensor, batch: ToyBatch) -> Tensor:
        return (outputs.abs() > 0.1).float()

    def passed(outputs: Tensor, batch: ToyBatch) -> Tensor:
        return outputs

    assert "new numbers, confident" in shown_measures(ToyConfig())
    found = hyla.evaluate(
        lambda x: x, "toy", splits=["held_out"], instances=23, metrics={"passed": passed}
    )["held_out"]
    index = torch.arange(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 23)
    last = ToyConfig().bind(0).batch("held_out", index).inputs[:, -1, 0]
    assert found["confident"] == pytest.approx((last.abs() > 0.1).double().mean().item())
    assert found["passed"] == pytest.approx(last.double().mean().item())


def test_any_model_is_evaluated_beside_ceilings_and_baselines() -> None:
    task = SravenConfig(features=2, values=5)

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.output = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 5)

        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return self.output(self.inner(x)[0])

    model = Lstm()
    found = hyla.evaluate(model, task, seed=2, splits=["held_out"], instances=101, batch=11)
    assert model.training
    index = torch.arange(FIRST_EVALUATION_INSTANCE, FIRST_EVALUATION_INSTANCE + 101)
    batch = task.bind(2).batch("held_out", index)
    right = accuracy(model.eval()(batch.inputs)[:, -2:], batch.targets)
    assert found["held_out"]["accuracy"] == pytest.approx(right.double().mean().item())
    references = found["held_out"]["references"]
    assert references["exact"]["accuracy"] > references["no sign"]["accuracy"] > 0.3
    with pytest.raises(ValueError, match="splits: unknown name 'test'"):
        hyla.evaluate(model, task, splits=["test"])


def test_a_task_that_is_not_registered_is_refused_with_the_way_out() -> None:
    values = task_run(ToyConfig()).to_dict()
    with pytest.raises(ValueError, match=r"task.name: unknown name 'toys'.*@register_task"):
        RunConfig.from_dict(values | {"task": {"name": "toys"}})
    with pytest.raises(ValueError, match="name: expected"):
        register_task("sraven")(ToyConfig)
