"""What the exact solver says about SRAVEN: ambiguity, ceilings, numbers of tasks and instances."""

import math
from collections.abc import Sequence
from typing import Any

from hyla.experiments.declare import Claim, Experiment, Figure, Point, Row, Verdict
from hyla.experiments.judge import NOT_MEASURED, NOT_REPRODUCED, REPRODUCED
from hyla.experiments.rows import FinishedRun, paper_values
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven_stats import (
    number_of_instances,
    number_of_laid_out_tasks,
    number_of_tasks,
    statistics,
)

# Percent of ambiguous instances in the paper, by (features, values).
PAPER = {(4, 4): (6.42, 0.38), (4, 8): (0.32, 0.09), (4, 16): (0.05, 0.03)}
SETTINGS = ((2, 8), (3, 8), (4, 4), (4, 8), (4, 16), (5, 8))
INSTANCES = {"paper": 65_536, "small": 8192, "smoke": 512}
TASKS, POSSIBLE = "log10 of tasks", "log10 of possible instances"
PAPER_LIMIT = 0.5  # percent: "less than half a percent of the problem instances"


def points() -> list[Point]:
    """The settings of the paper's table, and other numbers of features."""
    return [
        Point({"features": features, "values": values}, None, PAPER.get((features, values)))
        for features, values in SETTINGS
    ]


def solved(point: Point, runs: Sequence[FinishedRun], scale: str) -> list[Row]:
    """One row; `mean` is the fraction that is ambiguous by the paper's definition in words."""
    features, values = int(point.axes["features"]), int(point.axes["values"])
    config, instances = SravenConfig(features=features, values=values), INSTANCES[scale]
    found = statistics(config, "all", instances)
    held_out = statistics(config, "held_out", instances, prior="all")

    def percent(name: str) -> dict[str, Any]:
        estimate = getattr(found, name)
        return {"mean": 100 * estimate.value, "standard_error": 100 * estimate.standard_error}

    measures = {
        "ambiguous": percent("ambiguous"),
        "ambiguous in every feature": percent("ambiguous_every_feature"),
        "ambiguous feature by feature": percent("ambiguous_feature_by_feature"),
        "ceiling": percent("ceiling"),
        "ceiling on held-out": {
            "mean": 100 * held_out.ceiling.value,
            "standard_error": 100 * held_out.ceiling.standard_error,
        },
    }
    tasks, possible = number_of_tasks(features), number_of_instances(features, values)
    measures |= {TASKS: {"mean": math.log10(tasks)}, POSSIBLE: {"mean": math.log10(possible)}}
    return [
        {
            **point.axes,
            **measures["ambiguous"],
            "per_seed": [measures["ambiguous"]["mean"]],
            **paper_values(point),
            "measures": measures,
            "tasks": tasks,
            "laid_out_tasks": number_of_laid_out_tasks(features),
            "possible_instances": f"{possible:.3e}",
            "instances": instances,
        }
    ]


def rarely_ambiguous(rows: Sequence[Row]) -> Verdict:
    """At the paper's setting, by its definition in words."""
    row = next((r for r in rows if (r["features"], r["values"]) == (4, 8)), None)
    if row is None:
        return NOT_MEASURED
    mean, measures = row["mean"], row["measures"]
    together = measures["ambiguous in every feature"]["mean"]
    alone = measures["ambiguous feature by feature"]["mean"]
    told = f"{mean:.1f} % are by its definition in words ({row['paper_mean']} % in the paper)"
    otherwise = (
        f"{together:.2f} % if one other answer must differ in every feature (the authors' code)",
        f"{alone:.2f} % if every feature must be ambiguous by itself",
        "docs/sraven.md has all three for more numbers of values",
    )
    return Verdict(REPRODUCED if mean < PAPER_LIMIT else NOT_REPRODUCED, told, otherwise)


AMBIGUITY = Experiment(
    name="ambiguity",
    title="SRAVEN: ambiguity and ceilings, from the exact solver",
    where="table 2 and figure 15",
    points=points,
    make=solved,
    axes=("features", "values"),
    figures=(
        Figure(
            "measures",
            "Ambiguous instances and ceilings in percent (held-out: for whom all combinations are "
            "possible); numbers of tasks and instances",
            x="features",
            y="values",
        ),
        Figure("lines", "Number of tasks", "features", TASKS, "values", percent=False),
        Figure("lines", "Number of instances", "features", POSSIBLE, "values", percent=False),
    ),
    claims=(Claim("Less than half a percent of the instances is ambiguous", rarely_ambiguous),),
)
