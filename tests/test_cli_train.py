"""`hyla train` and `hyla runs`: options, folders, what is shown, and how a run ends."""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import Hyla
from test_cli import Missing
from test_cli_display import evaluation, member, progress

from hyla import cli
from hyla.cli.options import field_texts
from hyla.config import Config
from hyla.experiments.paper.runs import fuzzy_logic_run, sraven_run
from hyla.model import ModelConfig, sraven_model
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.recall import RecallConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train.config import Member, RunConfig, grid
from hyla.train.watch import Watcher

MODEL = {
    "layers": ("--layers 3", 3), "width": ("--width 24", 24), "heads": ("--heads 5", 5),
    "head_size": ("--head-size 6", 6), "kind": ("--kind softmax", "softmax"),
    "activation": ("--activation silu", "silu"), "causal": ("--causal", True),
    "positions": ("--positions rotary", "rotary"), "buckets": ("--buckets 77", 77),
    "feed_forward": ("--feed-forward moe", "moe"), "hidden_size": ("--hidden-size 40", 40),
    "experts": ("--feed-forward moe --experts 7", 7),
    "top_k": ("--feed-forward moe --top-k 1", 1),
    "attention_dropout": ("--attention-dropout 0.2", 0.2),
}  # fmt: skip
RUN = {
    "steps": ("--steps 5000", 5000), "batch": ("--batch 64", 64),
    "precision": ("--precision bf16", "bf16"), "log_every": ("--log-every 7", 7),
    "decay_head_biases": ("--decay-head-biases", True),
    "schedule": ("--schedule early_cosine", "early_cosine"),
    "evaluate_every": ("--evaluate-every 11", 11),
    "interim_instances": ("--interim-instances 13", 13),
    "evaluation_instances": ("--evaluation-instances 17", 17),
    "splits": ("--splits held-out train", ["held_out", "train"]),
}  # fmt: skip
MEMBER = {
    "seed": ("--first-seed 5", 5), "learning_rate": ("--lr 0.25", 0.25),
    "weight_decay": ("--weight-decay 0.5", 0.5), "warmup": ("--warmup 3", 3),
}  # fmt: skip
SRAVEN = {
    "features": ("--features 3", 3), "values": ("--values 5", 5),
    "held_out": ("--held-out 0.5", 0.5), "permute": ("--no-permute", False),
    "split_seed": ("--split-seed 9", 9), "published_splits": ("--published-splits", True),
}  # fmt: skip
FUZZY = {
    "variables": ("--variables 5", 5), "terms": ("--terms 3", 3), "examples": ("--examples 7", 7),
    "held_out": ("--held-out 0.5", 0.5), "unknown": ("--unknown 0.5", 0.5),
    "split_seed": ("--split-seed 9", 9), "published_splits": ("--published-splits", True),
}  # fmt: skip
RECALL = {
    "vocabulary": ("--vocabulary 512", 512), "pairs": ("--pairs 16", 16),
    "least_pairs": ("--least-pairs 2", 2), "length": ("--length 300", 300),
}  # fmt: skip
TASKS = {
    "sraven": (SravenConfig, SRAVEN),
    "fuzzy": (FuzzyLogicConfig, FUZZY),
    "recall": (RecallConfig, RECALL),
}
NOT_OF_RECALL = {"causal", "splits", "positions", "batch"}  # with the values of the tables above
# Fields that the task determines.
DECIDED = {ModelConfig: {"input_size", "output_size", "inputs", "tied"}}


def config_of(hyla: Hyla, command: str) -> dict[str, Any]:
    config: dict[str, Any] = hyla.json(f"train {command} --dry-run")["config"]
    return config


@pytest.mark.parametrize("task", TASKS)
def test_every_field_can_be_set(hyla: Hyla, task: str) -> None:
    kind, options = TASKS[task]
    plain = config_of(hyla, task)
    parts: list[tuple[type[Config], dict[str, Any], list[str | int]]] = [
        (ModelConfig, MODEL, ["model"]), (kind, options, ["task"]),
        (Member, MEMBER, ["members", 0]), (RunConfig, RUN, []),
    ]  # fmt: skip
    for config, table, place in parts:
        nested = {"model", "task", "members"} if config is RunConfig else set()
        names = {field.name for field in fields(config)}
        assert set(table) == names - DECIDED.get(config, set()) - nested
        for name, (option, value) in table.items():
            if task == "recall" and name in NOT_OF_RECALL:
                continue
            before, after = plain, config_of(hyla, f"{task} {option}")
            for step in place:
                before, after = before[step], after[step]
            assert after[name] == value != before[name], option


def test_what_is_not_given_is_the_paper_s(hyla: Hyla) -> None:
    assert config_of(hyla, "sraven") == sraven_run((Member(),)).to_dict()
    member = Member(0, 1e-3, 0.03, 100)
    assert config_of(hyla, "fuzzy") == fuzzy_logic_run((member,)).to_dict()
    assert "unknown" not in config_of(hyla, "fuzzy --unknown 0")["splits"]
    small = config_of(hyla, "sraven --features 2 --values 5")["model"]
    assert small == sraven_model(features=2, values=5).to_dict()
    published = config_of(hyla, "sraven --preset as_published --features 3")
    assert published["model"]["attention_dropout"] == 0.1
    assert published["task"]["published_splits"]
    assert published["model"]["buckets"] == 27


def test_lists_are_a_grid(hyla: Hyla) -> None:
    options = "--seeds 2 --first-seed 3 --lr 3e-4 1e-3 --weight-decay 0.1 0.3 --warmup 10 30"
    members = config_of(hyla, f"sraven {options}")["members"]
    expected = grid([3, 4], [3e-4, 1e-3], [0.1, 0.3], [10, 30])
    assert members == [member.to_dict() for member in expected]
    assert len(members) == 16


@pytest.mark.parametrize(
    "options, steps, warmup",
    [
        ("sraven", 156_250, 1000),
        ("sraven --instances 10_000_000", 78_125, 1000),
        ("sraven --batch 256", 78_125, 1000),
        ("sraven --instances 1001 --batch 10", 101, 10),
        ("sraven --steps 200", 200, 20),
        ("sraven --steps 5 --batch 7", 5, 0),
        ("fuzzy --batch 256", 50_000, 100),
        ("fuzzy --instances 6400", 50, 5),
        ("fuzzy --steps 60_000", 60_000, 100),
    ],
)
def test_length_and_warmup(hyla: Hyla, options: str, steps: int, warmup: int) -> None:
    config = config_of(hyla, options)
    assert (config["steps"], config["members"][0]["warmup"]) == (steps, warmup)


def test_the_same_settings_have_the_same_folder(hyla: Hyla) -> None:
    def folder(command: str) -> str:
        given: str = hyla.json(f"train {command} --dry-run")["folder"]
        return given

    first = folder("sraven --layers 3 --lr 1e-3")
    assert re.fullmatch(r"runs/sraven-hyla-[0-9a-f]{8}", first)
    assert folder("sraven --lr 0.001 --layers 3 --device cuda --stop-at 5") == first
    others = [folder(f"sraven --layers 3 {option}") for option, _ in [*RUN.values()]]
    assert len({first, *others}) == 1 + len(others)
    assert folder("fuzzy --kind hyla+deep").startswith("runs/fuzzy_logic-hyla+deep-")
    assert folder("fuzzy --folder a/b") == "a/b"


def test_a_dry_run_is_readable_and_can_be_read_back(hyla: Hyla, tmp_path: Path) -> None:
    text = hyla("train sraven --dry-run --seeds 3 --folder", str(tmp_path / "run"))
    assert text.count("\n") > 30
    config = RunConfig.from_dict(json.loads(text)["config"])
    assert len(config.members) == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command, message",
    [
        ("sraven --learnig-rate 1", r"--learnig-rate: unknown option\. Did you mean --lr\?"),
        ("sraven --batch_sizes 3", r"--batch-sizes: unknown option\. Did you mean --batch"),
        ("sraven --variables 3", r"--variables: unknown option\. Did you mean --values"),
        ("fuzzy --features 3", "--features: unknown option"),
        ("fuzzy --xyzzy", r"--xyzzy: unknown option\. --help lists all"),
        ("sraven --layers=many", "--layers: expected INT, got 'many'"),
        ("sraven --lr 1e-3 high", "--lr: expected FLOAT values with spaces between, got '1e-3' "),
        ("sraven --lr 3e-4,1e-3", "FLOAT values with spaces between, got '3e-4,1e-3'"),
        ("sraven --layers", "--layers: expected a value, got nothing"),
        ("sraven --layers 3 4", "4: belongs to no option"),
        ("sravn", "command: unknown name 'sravn'. Did you mean 'sraven'"),
        ("", "command: expected one of fuzzy, sraven, recall"),
        ("sraven --kind hila", "kind: unknown name 'hila'. Did you mean 'hyla'"),
        ("sraven --positions t6", "positions: unknown name 't6'. Did you mean 't5'"),
        ("sraven --precision fp61", "precision: unknown name 'fp61'"),
        ("sraven --splits unknown", "splits: unknown name 'unknown'"),
        ("sraven --splits", "splits: expected one or more different values, got nothing"),
        ("sraven --splits held-out held_out", "splits: .*, got held_out twice"),
        ("sraven --lr 1e-3 0.001", "lr: expected .* different values, got 0.001 twice"),
        ("sraven --lr 1e-3 --lr 3e-4", "--lr: given more than once"),
        ("sraven --lr", "lr: expected one or more"),
        ("sraven --lr -1", "--lr: expected"),
        ("sraven --lr nan", "--lr: expected"),
        ("sraven --seeds 0", "seeds: expected a whole number of at least 1, got 0"),
        ("sraven --first-seed -1", "seed: expected"),
        ("sraven --steps 10 --instances 100", "steps: expected one of these two"),
        ("sraven --steps 0", "steps: expected"),
        ("sraven --steps -20", "steps: expected"),
        ("sraven --instances 0", "instances: expected"),
        ("sraven --batch 0", "batch: expected"),
        ("sraven --steps 10 --warmup 10", "warmup: expected less than the 10 steps, got 10"),
        ("fuzzy --experts 8", "experts: expected nothing but with --feed-forward moe, got 8"),
        ("sraven --values 2", "values: expected"),
        ("sraven --stop-at 0", "--stop-at: expected"),
        ("sraven --members-at-once 0", "--members-at-once: expected"),
        ("sraven --checkpoint-seconds -1", "--checkpoint-seconds: expected"),
        ("sraven --checkpoint-seconds nan", "--checkpoint-seconds: expected"),
        ("sraven --compiled --no-compiled", "compiled: expected one of these two"),
        ("sraven --folder=", "folder: expected the name of a folder for this run"),
        ("fuzzy --terms 99", "terms|unknown"),
        ("sraven --preset published", "preset: unknown name 'published'. Did you mean"),
        ("nowhere:Task", "task: expected a class that can be imported"),
        ("hyla:KINDS", "task: expected a TaskConfig"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    hyla: Hyla, command: str, message: str, trainer: "Trainer", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hyla.folder)
    assert re.search(message, hyla.error(f"train {command}"))
    assert not trainer.calls
    assert not list(hyla.folder.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_help_is_in_groups_and_shows_the_paper_s_values(
    hyla: Hyla, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", task, "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    for group in ("model", "task", "population", "training", "run"):
        assert f" {group} options " in text
    assert f"(default: {4 if task == 'sraven' else 2})" in text
    assert all(text for text in field_texts(ModelConfig).values())
    assert "default: None" not in text


class Trainer:
    """Stands in for the trainer: remembers how it was called, and ends as it is told to."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.summary: dict[str, Any] = {
            "state": "finished", "step": 50, "steps": 50, "seconds": 61.2,
            "instances_per_second": 1234.5,
            "members": [
                member(0, evaluation=evaluation(0.25)),
                member(1, diverged_at=7, loss=None),
                member(2, evaluation=evaluation(0.75)),
            ],
        }  # fmt: skip

    def __call__(self, config: RunConfig, path: Path, **options: Any) -> dict[str, Any]:
        self.calls.append({"config": config, "path": path, **options})
        for watcher in options["watchers"]:
            watcher.say("hello from the trainer")
            watcher.progress(progress(10))
        if self.error is not None:
            raise self.error
        return self.summary


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    fake = Trainer()
    monkeypatch.setattr("hyla.train.loop.train", fake)
    return fake


def test_the_trainer_gets_what_was_asked_for(
    hyla: Hyla, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hyla.folder)
    hyla.json("train sraven --steps 20")
    call = trainer.calls[-1]
    assert call["path"] == Path(hyla.json("train sraven --steps 20 --dry-run")["folder"])
    assert (call["device"], call["compiled"]) == ("auto", None)
    assert (call["stop_at"], call["members_at_once"]) == (None, None)
    options = "--device cpu --no-compiled --stop-at 5 --members-at-once 2 --checkpoint-seconds 9"
    hyla.json(f"train sraven --steps 20 --folder a {options}")
    call = trainer.calls[-1]
    assert (call["path"], call["device"], call["compiled"]) == (Path("a"), "cpu", False)
    assert (call["stop_at"], call["members_at_once"]) == (5, 2)
    assert call["checkpoint_seconds"] == 9
    hyla.json("train sraven --steps 20 --compiled")
    assert trainer.calls[-1]["compiled"] is True


def test_the_summary_is_a_table_best_first(
    hyla: Hyla, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["train", "sraven", "--folder", "some/where"])
    output = capsys.readouterr()
    rows = re.findall(r"^ +(\d+) .*$", output.out, re.MULTILINE)
    assert rows == ["2", "0", "1"]
    best = r"^ +2 +2 +0\.001 +0\.1 +10 +1\.0000 +0\.9000 +0\.7500"
    assert re.search(best, output.out, re.MULTILINE)
    assert "held_out accuracy" in output.out
    assert "step 7" in output.out
    assert "50 of 50 steps in 0:01:01" in output.out
    assert "Folder: some/where" in output.out
    assert "hyla runs some" in output.out
    assert output.err.splitlines()[0] == "hello from the trainer"
    assert output.err.splitlines()[1].startswith("step 10/50")


def test_json_is_the_summary_and_nothing_else(hyla: Hyla, trainer: Trainer) -> None:
    assert hyla.json("train fuzzy --folder x") == {"folder": "x"} | trainer.summary


def test_a_run_that_stopped_early_says_how_to_go_on(
    hyla: Hyla, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [member(0, loss=2.0), member(1, loss=1.0)]
    trainer.summary |= {"state": "stopped", "step": 20, "members": members}
    cli.main(["train", "sraven", "--stop-at", "20"])
    text = capsys.readouterr().out
    goes_on = "the same command without --stop-at goes on"
    assert f"stopped at step 20 of 50 as asked; {goes_on}\n" in text
    assert re.findall(r"^ +(\d+) .*$", text, re.MULTILINE) == ["1", "0"]
    assert "diverged" not in text


def test_interrupting_says_how_to_go_on(
    hyla: Hyla, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer.error = KeyboardInterrupt()
    text = hyla.refused("train sraven --folder here", code=130)
    last = text.splitlines()[-1]
    assert last == "interrupted: the same command starts from the beginning (in here)"
    Path("here", "checkpoints").mkdir(parents=True)
    Path("here", "checkpoints", "step-000000012.safetensors").touch()
    text = hyla.refused("train sraven --folder here", code=130)
    assert text.splitlines()[-1] == "interrupted: the same command goes on from step 12 (in here)"


def test_what_the_trainer_refuses_is_told_in_one_line(hyla: Hyla, trainer: Trainer) -> None:
    for error in (ValueError("here: another run"), OSError("here: the disk is full")):
        trainer.error = error
        assert hyla.error("train sraven --json") == f"error: {error}\n"


def test_watchers_are_closed_however_it_ends(hyla: Hyla, trainer: Trainer) -> None:
    closed = []

    class Mirror(Watcher):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.options = options

        def close(self) -> None:
            closed.append(self)

    trainer.error = ValueError("no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyla.cli.train.TensorBoardMirror", Mirror)
        patch.setattr("hyla.cli.train.WandbMirror", Mirror)
        hyla.error("train sraven --json --tensorboard --wandb some-project")
    assert len(closed) == 2
    assert {"project": "some-project"} in [mirror.options for mirror in closed]


@pytest.mark.parametrize(
    "option, package", [("--tensorboard", "tensorboard"), ("--wandb x", "wandb")]
)
def test_a_missing_package_is_named_before_training(
    hyla: Hyla, trainer: Trainer, option: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (package, "torch.utils.tensorboard")
    for name in [name for name in sys.modules if name.startswith(gone)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    message = hyla.error(f"train sraven {option}")
    assert message == f"error: this needs {package}: pip install {package}\n"
    assert not trainer.calls


@pytest.mark.parametrize("task", TASKS)
def test_from_end_to_end(
    hyla: Hyla, task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train up to a step, go on to the end, find nothing left to do, list it."""
    monkeypatch.chdir(hyla.folder)
    small = "--layers 1 --width 8 --heads 2 --head-size 2 --hidden-size 8 --batch 4 --log-every 2"
    small += " --vocabulary 32 --pairs 4 --length 19" if task == "recall" else ""
    settings = "--evaluation-instances 32 --interim-instances 16 --evaluate-every 2 --steps 8"
    command = f"train {task} {small} {settings} --seeds 2 --lr 1e-3 3e-3 --device cpu"
    folder = hyla.json(f"{command} --dry-run")["folder"]
    cli.main([*command.split(), "--stop-at", "4", "--tensorboard"])
    output = capsys.readouterr()
    assert "stopped at step 4 of 8 as asked" in output.out
    assert "step 2/8" in output.err
    assert list(Path(folder, "tensorboard").iterdir())
    summary = hyla.json(command)
    assert (summary["state"], summary["step"], summary["folder"]) == ("finished", 8, folder)
    assert len(summary["members"]) == 4
    cli.main(command.split())
    output = capsys.readouterr()
    assert "finished" in output.err
    assert f"Folder: {folder}" in output.out
    [listed] = hyla.json("runs")
    assert (listed["state"], listed["step"], listed["members"]) == ("finished", 8, 4)
    assert listed["best"] is not None
    assert f"{listed['best']['value']:.4f}" in output.out
    assert "another configuration" in hyla.error(f"{command} --batch 5 --folder {folder}")
