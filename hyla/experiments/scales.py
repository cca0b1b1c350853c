"""The scales of an experiment: the paper's, a small one for a GPU and minutes, one for tests."""

from dataclasses import replace

from hyla.errors import unknown_name
from hyla.experiments.declare import Experiment, Point
from hyla.model import ModelConfig
from hyla.train.config import VALIDATION, Member, RunConfig

SCALES = {
    "paper": "as in the paper",
    "small": "a tenth of the instances, one setting, 3 seeds: shows trends, on a GPU in minutes",
    "demo": "a reduced task of its own, for two CPU cores and minutes",
    "smoke": "a few steps of tiny models: shows that everything works, nothing else",
}
FOR_GPUS = ("paper", "small")
SMALL_PART = 10
SMALL_EVALUATION = 10_240


def points_at(experiment: Experiment, scale: str) -> list[Point]:
    """The points of an experiment at a scale.

    At the smoke scale, axes have fewer values.
    """
    if scale not in experiment.scales:
        raise unknown_name(f"scale of {experiment.name}", scale, experiment.scales)
    points = experiment.points()
    if scale == "smoke":
        chosen = experiment.smoke.items()
        points = [p for p in points if all(p.axes[axis] in values for axis, values in chosen)]
    return [
        point if point.config is None else replace(point, config=_scaled(point.config, scale))
        for point in points
    ]


def _scaled(config: RunConfig, scale: str) -> RunConfig:
    config = replace(config, splits=(*config.splits, VALIDATION))
    if scale == "small":
        steps = config.steps // SMALL_PART
        first = config.members[0]
        members = [
            replace(member, warmup=min(member.warmup, steps // 10))
            for member in config.members
            if settings(member) == settings(first)
        ]
        return replace(
            config, steps=steps, members=tuple(members), evaluate_every=steps // 20,
            evaluation_instances=min(config.evaluation_instances, SMALL_EVALUATION),
        )  # fmt: skip
    if scale == "smoke":
        chosen = dict.fromkeys(settings(member) for member in config.members)
        ends = {min(chosen), max(chosen)}
        members = [
            replace(member, warmup=1)
            for member in config.members
            if settings(member) in ends and member.seed < 2
        ]
        return replace(
            config, model=_tiny(config.model), members=tuple(dict.fromkeys(members)), steps=4,
            batch=8, log_every=2, evaluate_every=2, interim_instances=16, evaluation_instances=64,
        )  # fmt: skip
    return config


def _tiny(model: ModelConfig) -> ModelConfig:
    """Wider and deeper models stay wider and deeper."""
    width = model.width // 8
    return replace(
        model, layers=max(2, model.layers // 2), width=width, heads=min(model.heads, 4),
        head_size=min(model.head_size, 4), hidden_size=width,
    )  # fmt: skip


def settings(member: Member) -> tuple[float, float, int]:
    """The hyperparameters of a member: all that is not its seed."""
    return member.learning_rate, member.weight_decay, member.warmup
