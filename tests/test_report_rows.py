"""Rows that look like results at the paper's scale, for tests of the report."""

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Experiment, Figure
from hyla.experiments.results import results_file
from hyla.experiments.runner import Options, run_experiment
from hyla.experiments.scales import points_at
from hyla.report.drawn import Drawn
from hyla.report.figures import draw

Row = dict[str, Any]
RULES = (
    "constant", "progression +1", "progression +2", "progression -1", "progression -2",
    "addition", "subtraction", "distribute three",
)  # fmt: skip
HOSTILE = """</script><img src=x onerror=alert(1)><b>bold</b><a href="https://example.org">"'&amp;$x$\ud800"""


def spread(rng: random.Random, mean: float, width: float = 2.0, seeds: int = 3) -> Row:
    values = [rng.gauss(mean, width) for _ in range(seeds)]
    mean = sum(values) / seeds
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (seeds - 1) / seeds)
    return {"mean": mean, "standard_error": error, "per_seed": values}


def level(axes: Row) -> float:
    """How good a model is."""
    name = str(axes.get("kind", axes.get("row", ""))).lower()
    found = 58.0 + 14 * ("hyla" in name) - 3 * ("linear" in name)
    for axis, gain in (("millions", 4.0), ("width", 3.0), ("depth", 2.5), ("heads", 3.5)):
        if axis in axes:
            found += gain * math.log2(axes[axis] / (10 if axis == "millions" else 4))
    found += 4 * math.log2(axes["examples"] / 32) if "examples" in axes else 0
    return min(92.0, found - 30 * axes.get("held_out", 0.25) + 8)


def measured_row(point: Any, rng: random.Random) -> Row:
    """The shape of `hyla.experiments.rows.measured`."""
    config = point.config
    name = "sraven" if config.task_name == "sraven" else "fuzzy_logic"
    mean = level(dict(point.axes))
    held_out = spread(rng, mean)
    settings = {"learning_rate": 0.001, "weight_decay": 0.1, "warmup": 1000}
    paper_mean, paper_error = point.paper or (None, None)
    measures = {
        "held out": held_out,
        "in distribution": spread(rng, min(99, mean + 15), 1),
        "training loss": spread(rng, 0.4 * (100 - mean) / 40, 0.03),
    }
    row: Row = {
        **point.axes, **held_out,
        "paper_mean": paper_mean, "paper_standard_error": paper_error,
        "hyperparameters": settings,
        "paper_choice": spread(rng, mean + 2) | {"hyperparameters": settings},
        "grid": [settings | {"per_seed": [7.25, None]}, settings | {"per_seed": [98.75]}, settings],
        "chosen_members": [["run", 0]],
    }  # fmt: skip
    if config.model.kind == "hyla":
        row["active_units"] = [[30.0, 9.5, 0.0, 1.2], [30.0, 9.5, 2.1, 1.2], [31.0, 9.5, 2.0, 1.2]]
    if "unknown" in config.splits:
        measures["unknown terms"] = spread(rng, mean / 4)
    if name == "sraven":
        measures["held out, per feature"] = spread(rng, (mean + 100) / 2)
        row["signs"] = {"right": spread(rng, 41.0), "other": spread(rng, 40.0)}
        for by in ("accuracy_by_rule", "feature_accuracy_by_rule"):
            row[by] = {rule: spread(rng, mean - 3 * i) for i, rule in enumerate(RULES)}
        steps = [1000 * i for i in range(1, 26)]
        row |= {"ceiling": 92.9, "solver_by_rule": dict.fromkeys(RULES, 97.2)}
        row["curves"] = {
            "step": steps,
            "accuracy": [round(mean * (1 - math.exp(-s / 9000)), 3) for s in steps],
            "by_rule": {
                rule: [round(98 / (1 + math.exp((2500 * i - s) / 1500)), 3) for s in steps]
                for i, rule in enumerate(RULES)
            },
        }
    return {**row, "measures": measures, **provenance(config, name, rng)}


def provenance(config: Any, name: str, rng: random.Random) -> Row:
    return {
        "search": "full", "date": "2026-11-15", "members": len(config.members),
        "instances": config.steps * config.batch, "precision": "bf16", "device": "NVIDIA H200",
        "versions": {"hyla": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "cuda": "13.0"},
        "seconds": round(rng.uniform(200, 900), 1),
        "runs": [f"{name}-{config.model.kind}-{rng.getrandbits(32):08x}"],
    }  # fmt: skip


def ambiguity_row(point: Any, rng: random.Random) -> Row:
    names = ("ambiguous", "ambiguous in every feature", "ambiguous feature by feature")
    names += ("ceiling", "ceiling on held-out")
    names += ("log10 of tasks", "log10 of possible instances")
    numbers = (24.1, 0.31, 0.35, 94.0, 92.9, 5.3, 24.0)
    measures = {
        name: {"mean": value, "standard_error": 0.1}
        for name, value in zip(names, numbers, strict=True)
    }
    mean, error = point.paper or (None, None)
    return {
        **point.axes, **measures["ambiguous"], "per_seed": [24.1], "paper_mean": mean,
        "paper_standard_error": error, "measures": measures, "instances": 65_536,
    }  # fmt: skip


def reader_row(point: Any, rng: random.Random) -> Row:
    means = {"held out": 91.0, "in distribution": 90.0}
    if "examples" in point.axes:
        means["unknown terms"] = -64.0
    measures = {name: spread(rng, mean) for name, mean in means.items()}
    return {
        **point.axes, **measures["held out"], "paper_mean": None, "paper_standard_error": None,
        "measures": measures, "instances": 4096,
    }  # fmt: skip


def sign_row(point: Any, rng: random.Random) -> Row:
    names = [
        "told apart", "told apart, training", "solved", "solved but for signs", "addition: right",
        "addition: as subtraction", "subtraction: right", "subtraction: as addition",
        "kept, another first row", "kept, another second row",
    ]  # fmt: skip
    measures = {name: spread(rng, 50.0) for name in names}
    origin = provenance(point.config, "signs", rng)
    return {**point.axes, **measures["told apart"], "measures": measures, **origin}


def code_rows(point: Any, rng: random.Random, name: str) -> list[Row]:
    """Latent codes: decoding, maps, matrices."""
    layers = {"codes-depth": 5, "codes-sraven": 4}.get(name, 2)
    labels = [f"term {i}" for i in range(12)] if layers == 2 else list(RULES)
    origin = provenance(point.config, "codes", rng)
    rows: list[Row] = []
    count = 80
    for layer in range(layers):
        place = {**point.axes, "layer": layer, **origin}
        chosen = [rng.randrange(len(labels)) for _ in range(count)]
        centres = [(math.cos(6.28 * i / len(labels)), math.sin(6.28 * i / len(labels)))
                   for i in chosen]  # fmt: skip
        x, y = ([round(40 * c[k] + rng.gauss(0, 6), 2) for c in centres] for k in (0, 1))
        colours: Row = {"rule": [labels[i] for i in chosen], "target": [i % 8 for i in chosen]}
        if layers == 2:
            colours = {
                "target": [round(rng.random(), 3) for _ in chosen],
                "function": [f"f{i} + {rng.randrange(5)}" for i in chosen],
                "term 1": [labels[i] for i in chosen],
                "term 2": [labels[(i * 5) % 12] for i in chosen],
            }
        maps = {"what": "map", "label": "", "x": x, "y": y, "colours": colours}
        ways = [{"fixed": fixed} for fixed in ("context", "query")]
        if layers != 2:
            ways = [{"keys": keys} for keys in ("self", "row")]
        for way in ways:
            unmapped = {"codes-fuzzy": {"fixed": "query"}, "codes-depth": {"keys": "row"}}
            rows += [{**place, **maps, **way}] if way != unmapped.get(name) else []
            decoded = [("decoding", label) for label in ["all", *labels]]
            if layers != 2:
                decoded += [("answers", label) for label in ["all", "value 0", "value 7"]]
            for kind, label in decoded:
                f1, control = spread(rng, 52 + 12 * layer), spread(rng, 12, 1)
                measures = {"F1": f1, "F1, labels shuffled": control}
                what = {"what": kind, **way, "label": label}
                rows.append({**place, **what, **f1, "measures": measures})
            for label in ("function" if layers == 2 else "rule", "value"):
                share, what = spread(rng, 30), {"what": "explained", **way, "label": label}
                measures = {"variance explained": share}
                rows.append({**place, **what, **share, "measures": measures})
    if name == "codes-sraven":
        for keys in ("self", "row"):
            at = {**point.axes, "keys": keys, "layer": layers, "label": "", **origin}
            rows += matrices(at, rng)
    return rows


def matrices(place: Row, rng: random.Random) -> list[Row]:
    cosine = [[1.0 if i == j else round(rng.uniform(-0.3, 0.8), 3) for j in range(8)]
              for i in range(8)]  # fmt: skip
    heads = [[round(rng.gauss(0, 1), 3) for _ in range(16)] for _ in range(32)]
    measures = {
        "addition and subtraction": spread(rng, 60),
        "all pairs of rules": spread(rng, 10),
        "addition and subtraction above all pairs": spread(rng, 50),
        "the same before training": spread(rng, 10),
    }
    names = [RULES[rng.randrange(8)] for _ in range(32)]
    return [
        {**place, "what": "similarity", "labels": list(RULES), "matrix": cosine,
         "measures": measures},
        {**place, "what": "mean codes", "labels": list(RULES), "matrix": heads[:8]},
        {**place, "what": "samples", "labels": names, "matrix": heads},
    ]  # fmt: skip


def rows_of(experiment: Experiment) -> list[Row]:
    """All rows of an experiment."""
    rng = random.Random(experiment.name)
    make: Callable[[Any], list[Row]]
    if "codes" in experiment.name:
        make = lambda point: code_rows(point, rng, experiment.name)  # noqa: E731
    elif experiment.name == "ambiguity":
        make = lambda point: [ambiguity_row(point, rng)]  # noqa: E731
    elif experiment.name == "signs":
        make = lambda point: [sign_row(point, rng)]  # noqa: E731
    elif "readers" in experiment.name:
        make = lambda point: [reader_row(point, rng)]  # noqa: E731
    else:
        make = lambda point: [measured_row(point, rng)]  # noqa: E731
    scale = experiment.scales[0]
    command = f"hyla reproduce {experiment.name} --scale {scale} --precision bf16"
    rows = [row for point in points_at(experiment, experiment.scales[0]) for row in make(point)]
    return [{**row, "scale": scale, "command": command} for row in rows]


def write_results(
    folder: Path, change: Callable[[Row], Row] = dict, names: Iterable[str] = EXPERIMENTS
) -> tuple[Path, Path]:
    """A file of rows for each experiment at its first scale; the folders of results and runs."""
    results, runs = folder / "results", folder / "runs"
    for name in names:
        experiment = EXPERIMENTS[name]
        file = results_file(name, experiment.scales[0], results, runs)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([change(row) for row in rows_of(experiment)]))
    return results, runs


def drawings(rows_change: Any = dict) -> Iterator[tuple[Figure, Drawn]]:
    for experiment in EXPERIMENTS.values():
        rows = [rows_change(row) for row in rows_of(experiment)]
        for figure in experiment.figures:
            for drawn in draw(figure, rows, experiment.axes):
                yield figure, drawn


def hostile(thing: Any) -> Any:
    """The same with markup in every text, but for those that say what and at which scale."""
    if isinstance(thing, dict):
        kept = ("what", "scale", "task")
        return {
            (key if key in FIELDS else f"{key}{HOSTILE}"): value if key in kept else hostile(value)
            for key, value in thing.items()
        }
    if isinstance(thing, list):
        return [hostile(value) for value in thing]
    return thing + HOSTILE if isinstance(thing, str) else thing


FIELDS = {
    "mean", "standard_error", "per_seed", "paper_mean", "paper_standard_error", "hyperparameters",
    "paper_choice", "measures", "ceiling", "curves", "step", "accuracy", "by_rule", "scale",
    "search", "members", "instances", "precision", "device", "versions", "seconds", "runs",
    "command", "row", "task", "attention", "examples", "held_out", "heads", "features", "values",
    "width", "depth", "millions", "what", "layer", "label", "labels", "matrix", "x", "y", "colours",
    "rule", "target", "function", "term 1", "term 2", "held out", "held out, per feature",
    "in distribution", "unknown terms", "training loss", "F1", "F1, labels shuffled",
    "accuracy_by_rule", "hyla", "torch",
}  # fmt: skip


def test_rows_have_the_shape_of_results(tmp_path: Path) -> None:
    for name, axes in (("heads", {"heads": ("1",)}), ("demo", {})):
        only = {"kind": ("hyla",), **axes}
        options = Options("smoke", tmp_path / "runs", tmp_path / "results", only, device="cpu")
        real = run_experiment(EXPERIMENTS[name], options)[0]
        made = next(r for r in rows_of(EXPERIMENTS[name]) if r["kind"] == "hyla")
        assert real.keys() == made.keys()
        for field in ("measures", "paper_choice", "curves", "accuracy_by_rule", "signs"):
            if isinstance(real.get(field), dict):
                assert real[field].keys() == made[field].keys()
