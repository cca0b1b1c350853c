"""Keeps the curves of trainings: `python benchmarks/trainings.py runs/paper/RUN ...`.

Adds one line for each member of each run folder to results/trainings.json, or replaces it: held-out
accuracy or R2 and training loss at every evaluation, and what the end came to, or the step at which
it was stopped. A row of results has only the chosen trainings, and their mean; these are all. A
line takes over command and device from the row in results/ that the run is of; a run of none, such
as one that was stopped, is given its command, and copies of one training are told apart:
`--command "hyla train ..." --copy 2`. To compare them closely, `--early 5000` also keeps every
record of the training loss up to that step.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hyla.experiments.ablation import FUZZY, SRAVEN, title
from hyla.experiments.results import read_rows
from hyla.files import new_file, to_json
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import SravenConfig
from hyla.train import RunConfig, sraven_run
from hyla.train.runs import CONFIG, METRICS, SUMMARY, read_config

Entry = dict[str, Any]
RESULTS = Path(__file__).parent.parent / "results"


def axes(config: RunConfig) -> Entry:
    """Where a run differs from table 1; for fuzzy logic its place in the figure."""
    task, model = config.task, config.model
    if isinstance(task, FuzzyLogicConfig):
        return {"examples": task.examples, "held_out_fraction": task.held_out}
    paper = sraven_run(config.members)
    assert isinstance(paper.task, SravenConfig)
    found = {
        "instances": (config.steps * config.batch, paper.steps * paper.batch),
        "depth": (model.layers, paper.model.layers),
        "width": (model.width // paper.model.width, 1),
        # Wider models have more heads of the same size: that of a head tells.
        "heads": (paper.model.heads * paper.model.head_size // model.head_size, paper.model.heads),
        "features": (task.features, paper.task.features),
        "held_out_fraction": (task.held_out, paper.task.held_out),
        "decay_head_biases": (config.decay_head_biases, paper.decay_head_biases),
    }
    return {name: value for name, (value, usual) in found.items() if value != usual}


def largest_rise(steps: list[int], losses: list[float], warmup: int) -> Entry | None:
    """Between two records of the training loss, each a mean since the one before, after warm-up."""
    pairs = [
        (after - before, step, before, after)
        for step, before, after in zip(steps[1:], losses, losses[1:], strict=False)
        if step > warmup
    ]
    if not pairs:
        return None
    _, step, before, after = max(pairs)
    return {"step": step, "from": round(before, 3), "to": round(after, 3)}


def entries(
    run: Path, rows: Iterable[Entry], command: str | None, copy: int, early: int
) -> list[Entry]:
    """A line for each member of a run."""
    if not (run / CONFIG).is_file():
        raise SystemExit(f"{run}: expected a run folder, there is no {CONFIG} in it")
    row = next((row for row in rows if run.name in row.get("runs", ())), {})
    if not row and command is None:
        raise SystemExit(
            f"{run}: expected the run of a row in results, or --command; no row names it"
        )
    values, environment = read_config(run)
    config = RunConfig.from_dict(values)
    # A copy has the name of the row's run, and may be made elsewhere.
    origin = made_on(environment) if copy > 1 or not row else row
    provenance = {name: origin[name] for name in ("device", "versions")}
    provenance |= {"command": command or row["command"], "run": run.name}
    provenance |= {"copy": copy} if copy > 1 else {}
    summary: Entry = {"members": [None] * len(config.members)}  # of a run that was killed
    if (run / SUMMARY).is_file():
        summary = json.loads((run / SUMMARY).read_text())
    stopped = summary.get("state", "stopped") == "stopped"
    records, found = read_records(run), []
    for number, end in enumerate(summary["members"]):
        own = [r for r in records if r["member"] == number]
        line = entry(config, number, end, own, stopped) | provenance
        first = {step: loss for step, loss in logged_losses(own).items() if step <= early}
        losses = [round(loss, 9) for loss in first.values()]
        found.append(line | ({"early": {"step": [*first], "loss": losses}} if first else {}))
    return found


def made_on(environment: Entry) -> Entry:
    """Device and versions, as a row has them."""
    versions = {name: environment.get(name) for name in ("hyla", "torch", "python", "cuda")}
    return {"device": environment.get("device"), "versions": versions}


def logged_losses(records: Iterable[Entry]) -> dict[int, float]:
    """The training loss by step; the record that says that a member diverged has none."""
    return {r["step"]: r["loss"] for r in records if "split" not in r and "loss" in r}


def read_records(run: Path) -> list[Entry]:
    """What a run recorded; the last line may be torn where it was killed."""
    text = (run / METRICS).read_text() if (run / METRICS).is_file() else ""
    records = [json.loads(line) for line in text.split("\n")[:-1]]
    if not any(r.get("split") == "held_out" for r in records):
        raise SystemExit(f"{run}: expected evaluations in {METRICS}, there are none so far")
    return records


def entry(
    config: RunConfig, number: int, end: Entry | None, records: list[Entry], stopped: bool
) -> Entry:
    """Of one member: its records and, if it was not stopped before, its part of the summary."""
    member, fuzzy = config.members[number], config.task_name == "fuzzy_logic"
    measure, digits = ("r2", 6) if fuzzy else ("accuracy", 4)
    logged = logged_losses(records)
    held_out = [r for r in records if r.get("split") == "held_out"]
    found = {
        "task": FUZZY if fuzzy else SRAVEN,
        "row": title(config.model.kind, config.model.feed_forward),
        **axes(config),
        "precision": config.precision,
        "seed": member.seed,
        "learning_rate": member.learning_rate,
        "weight_decay": member.weight_decay,
        "warmup": member.warmup,
        "step": [r["step"] for r in held_out],
        "training_loss": [
            round(logged[max(s for s in logged if s <= r["step"])], digits) for r in held_out
        ],
        "held_out": [percent(r[measure]) for r in held_out],
        "largest_rise": largest_rise([*logged], [*logged.values()], member.warmup),
    }
    if not fuzzy and held_out and all(r.get("signs") for r in held_out):  # before, runs had none
        found["by_step"] = by_step(held_out)
    if end is not None and end["diverged_at"] is not None:
        return found | {"diverged_at": end["diverged_at"]}
    if stopped:
        last = held_out[-1]["instances"]  # more where it was asked to stop than on the way
        return found | {"stopped_at": max(logged), "steps": config.steps, "last_evaluated_on": last}
    evaluation = end["evaluation"]
    found["in_distribution"] = percent(evaluation["train"][measure])
    if "validation" in evaluation:  # runs of `hyla train` have none
        found["validation_loss"] = round(evaluation["validation"]["loss"], digits)
    if not fuzzy:
        by_rule = evaluation["held_out"]["feature_accuracy_by_rule"]
        found["features_right"] = {rule: percent(right) for rule, right in by_rule.items()}
        if signs := evaluation["held_out"].get("signs"):
            found["signs"] = {name: percent(part) for name, part in signs.items()}
    elif "unknown" in evaluation:
        unknown = [r for r in records if r.get("split") == "unknown"]
        found["unknown_terms_by_step"] = {r["step"]: percent(r["r2"]) for r in unknown}
        last = evaluation["unknown"]
        found["unknown_terms"] = {name: percent(last[name]) for name in ("r2", "pooled_r2")}
    return found


def by_step(held_out: list[Entry]) -> dict[str, list[float | None]]:
    """Features right under two rules, and how addition and subtraction are answered."""
    curves = {
        rule: [r["feature_accuracy_by_rule"][rule] for r in held_out]
        for rule in ("constant", "distribute three")
    }
    curves |= {f"sign {name}": [r["signs"][name] for r in held_out] for name in ("right", "other")}
    return {name: [percent(part) for part in parts] for name, parts in curves.items()}


def percent(fraction: float | None) -> float | None:
    """None for a rule that did not occur."""
    return None if fraction is None else round(100 * fraction, 2)


def main() -> None:
    """Adds lines to the file, which is replaced as a whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--command", help="that made the runs, if they are of no row in results")
    parser.add_argument("--copy", type=int, default=1, help="number of a training made once more")
    parser.add_argument("--early", type=int, default=0, help="last step of losses to be kept too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    options = parser.parse_args()
    if options.copy < 1:
        parser.error(f"--copy: expected at least 1, got {options.copy}")
    if len({run.name for run in options.runs}) < len(options.runs):
        parser.error("runs: expected one folder of each name; give copies one by one, with --copy")
    kept = options.results / "trainings.json"
    rows = [
        row for path in options.results.glob("*.json") if path != kept for row in read_rows(path)
    ]
    given = options.command, options.copy, options.early
    added = [entry for run in options.runs for entry in entries(run, rows, *given)]
    names = {run.name for run in options.runs}
    before = json.loads(kept.read_text()) if kept.is_file() else []
    others = [e for e in before if e["run"] not in names or e.get("copy", 1) != options.copy]
    lines = [to_json(e) for e in others + added]
    with new_file(kept, overwrite=True) as file:
        file.write(("[\n" + ",\n".join(lines) + "\n]\n").encode())
    sys.stdout.write(
        f"{kept}: trainings of {len(names)} run(s): {len(added)}, in all {len(lines)}\n"
    )


if __name__ == "__main__":
    main()
