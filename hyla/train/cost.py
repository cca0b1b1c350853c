"""A rough estimate of what trainings cost on this machine."""

import time
from functools import cache

import torch

from hyla.attention.variants import find_kind
from hyla.train.config import Member, RunConfig, task_run
from hyla.train.placement import find_devices
from hyla.train.population import Population

TIMED_STEPS = 3


def step_flops(config: RunConfig) -> float:
    """Count the floating-point operations of one step of one member, forward and backward."""
    model, tokens = config.model, config.task.tokens
    inner = model.heads * model.head_size
    projections = 4 * model.width * inner + 2 * model.width * model.hidden_size
    attention = 2 * tokens * inner * (1 if find_kind(model.kind).value_network == "linear" else 2)
    per_token = model.layers * (projections + attention)
    return 6.0 * per_token * tokens * config.batch


@cache
def flops_per_second(device: str) -> float:
    """Time a few uncompiled steps of the paper's SRAVEN model; on a GPU, of twelve members."""
    place = find_devices(device, "fp32")[0]
    members = 12 if place.type == "cuda" else 1
    config = task_run("sraven", tuple(Member(seed) for seed in range(members)), steps=2000)
    population = Population(config, range(members), place, compiled=False)
    population.advance()
    _wait(place)
    start = time.perf_counter()
    for _ in range(TIMED_STEPS):
        population.advance()
    _wait(place)
    return TIMED_STEPS * members * step_flops(config) / (time.perf_counter() - start)


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
