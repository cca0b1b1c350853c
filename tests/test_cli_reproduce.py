"""`hyla reproduce`: what it lists, refuses, runs and skips."""

import pytest
from commands import Hyla

from hyla.experiments import EXPERIMENTS


def test_the_list_has_every_experiment_with_its_cost(hyla: Hyla) -> None:
    place = f"--runs {hyla.folder / 'runs'} --results {hyla.folder / 'results'}"
    found = hyla.json(f"reproduce --list {place}")
    assert list(found) == list(EXPERIMENTS)
    assert found["ablation"]["points"] == 26
    assert found["ablation"]["members"] == 26 * 12
    less = hyla.json(f"reproduce --list --search first-seed {place}")
    assert less["ablation"]["members"] == 26 * 6
    assert less["ablation"]["hours"] < found["ablation"]["hours"]
    assert "figures 2C and 9" in hyla(f"reproduce --list {place}")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "names: expected one or more of ablation"),
        ("ablatoin", "names: unknown name 'ablatoin'. Did you mean 'ablation'"),
        ("heads --scale smok", "scale: unknown name 'smok'. Did you mean 'smoke'"),
        ("heads --scale demo", "scale of heads: unknown name 'demo'"),
        ("heads --only heads", "only: expected AXIS=VALUE"),
        ("heads --only haeds=1", "only: unknown name 'haeds'. Did you mean 'heads'"),
        ("heads --precision bf61", "precision: unknown name 'bf61'. Did you mean 'bf16'"),
        ("heads --members 0", "members: expected a whole number of at least 1, got 0"),
        ("heads --time-limit 0", "time_limit: expected a number of minutes above 0, got 0"),
        (
            "heads --search frist-seed",
            "search: unknown name 'frist-seed'. Did you mean 'first-seed'",
        ),
    ],
)
def test_what_is_wrong_is_named(hyla: Hyla, arguments: str, message: str) -> None:
    assert message in hyla.error(f"reproduce {arguments}")


def test_runs_and_skips(hyla: Hyla, capsys: pytest.CaptureFixture[str]) -> None:
    from hyla import cli

    command = "reproduce heads --scale smoke --only attention=hyla heads=1 --device cpu --json"
    arguments = [*command.split(), "--runs", str(hyla.folder)]
    outputs = []
    for _ in range(2):
        cli.main(arguments)
        outputs.append(capsys.readouterr())
    assert outputs[0].out == outputs[1].out
    assert outputs[1].err.strip().endswith("heads.json")
