"""Numbers that a change of structure must not change; deleted when the restructuring is done."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyla import native
from hyla.attention.variants import KINDS
from hyla.experiments import EXPERIMENTS
from hyla.experiments.rows import all_rows
from hyla.model import fuzzy_logic_model, sraven_model
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.train import Member, RunConfig, train
from hyla.train.store import Store

NETS = json.loads((Path(__file__).parent / "nets.json").read_text())
SPLITS = {"sraven": ("train", "held_out", "all"), "fuzzy_logic": ("train", "held_out", "unknown")}


def digest(task: Sraven | FuzzyLogic, split: str, first: int) -> str:
    batch = task.batch(split, range(first - 2 if first else 0, first + 5))
    parts = hashlib.sha256()
    for name, value in sorted(vars(batch).items()):
        if isinstance(value, torch.Tensor):
            parts.update(f"{name}{value.dtype}{list(value.shape)}".encode())
            parts.update(value.contiguous().numpy().tobytes())
    return parts.hexdigest()


def batches() -> dict[str, str]:
    tasks = {
        "sraven": Sraven(SravenConfig(), 3),
        "fuzzy_logic": FuzzyLogic(FuzzyLogicConfig(), 3),
    }
    return {
        f"{name} {split} {first}": digest(task, split, first)
        for name, task in tasks.items()
        for split in SPLITS[name]
        for first in (0, 2**40, 2**41)
    }


def config(task: str, kind: str, feed_forward: str) -> RunConfig:
    model = sraven_model(kind, layers=2) if task == "sraven" else fuzzy_logic_model(kind)
    return RunConfig(
        SravenConfig() if task == "sraven" else FuzzyLogicConfig(),
        replace(model, width=32, hidden_size=48, feed_forward=feed_forward),
        (Member(seed=5, learning_rate=3e-3, warmup=2),), 5, batch=16, log_every=5,
        evaluation_instances=64, splits=("train", "held_out", "validation"),
    )  # fmt: skip


def trained(folder: Path, task: str, kind: str, feed_forward: str) -> dict[str, float]:
    summary = train(config(task, kind, feed_forward), folder, device="cpu", compiled=False)
    member = summary["members"][0]
    measures = {
        f"{split} {name}": value
        for split, values in member["evaluation"].items()
        for name, value in values.items()
        if isinstance(value, float)
    }
    return {"loss": member["loss"]} | measures


CASES = [
    (t, k, f) for t in SPLITS for k in KINDS for f in ("mlp", "moe") if f == "mlp" or k == "hyla"
]


def test_batches() -> None:
    assert batches() == NETS["batches"]


@pytest.mark.parametrize(("task", "kind", "feed_forward"), CASES)
def test_five_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, kind: str, feed_forward: str
) -> None:
    # The saved numbers are of the reference; kernels round differently and may flip a ReLU.
    monkeypatch.setattr("hyla.attention.kernels.choice.choose", lambda *arguments: "reference")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with native.using("products", None), native.using("attention", None):
            found = trained(tmp_path / "run", task, kind, feed_forward)
    finally:
        torch.set_num_threads(threads)
    # Deep value networks amplify rounding, which may change one of 256 answers.
    tolerance = 5e-3 if kind == "hyla+deep" else 1e-4
    expected = NETS["five steps"][f"{task} {kind} {feed_forward}"]
    assert found == pytest.approx(expected, abs=tolerance)


ROWS = json.loads((Path(__file__).parent / "nets-rows.json").read_text())


@pytest.mark.parametrize("name", [name for name in ROWS if name != "signs"])
def test_published_rows(name: str) -> None:
    """Every number that was published before is still there, but `signs`, the codes of panels and
    token together, and ambiguity, which was measured again on more instances.

    A row may have more seeds now, after those it had.
    """
    store = Store.open(None, Path(__file__).parents[1] / "results")
    rows = all_rows(EXPERIMENTS[name], store)
    assert len(rows) == len(ROWS[name])
    for before in ROWS[name]:
        axes = {"kind" if k == "attention" else k: v for k, v in before["axes"].items()}
        (row,) = (row for row in rows if row.is_at(axes))
        for measure, values in before.get("measures", {}).items():
            per_seed = values if isinstance(values, list) else [values]
            assert row.measures[measure].per_seed[: len(per_seed)] == tuple(per_seed)
            count = len(per_seed)
        if before.get("mean") is not None:
            main = replace(row.main, per_seed=row.main.per_seed[:count])
            assert main.mean == pytest.approx(before["mean"], rel=1e-12)
            known = before["standard_error"]
            assert main.standard_error == (known and pytest.approx(known, rel=1e-9))
        if row.setting is not None and "hyperparameters" in before:
            assert vars(row.setting) == before["hyperparameters"] | {"seed": 0}
