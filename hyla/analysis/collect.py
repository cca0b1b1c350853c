"""Latent codes of models on the tasks of the paper, of members of a run, of any tokens.

Shapes: L layers, B instances of a batch, H heads, N keys, K features or terms.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import comb
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyla.analysis.codes import Array, Codes, attention_codes, to_numpy
from hyla.errors import bad_value, unknown_name
from hyla.model import Transformer, check_single
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, describe
from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.train.population import FIRST_EVALUATION_INSTANCE
from hyla.train.trained import load_member

KEYS = ("self", "panels")
Part = tuple[Array, dict[str, Array]]


def collect(
    model: Transformer,
    task: FuzzyLogicConfig | SravenConfig,
    split: str,
    instances: int | Tensor,
    *,
    seed: int,
    first_instance: int = FIRST_EVALUATION_INSTANCE,
    fixed: str | None = None,
    keys: str = "self",
    permute: bool = False,
    device: torch.device | str | None = None,
    batch: int = 512,
) -> Codes:
    """The codes of the last token attending to some keys, for instances of a split under a seed.

    instances: how many, or a tensor of their numbers.
    first_instance: the number of the first one; by default one that no training reaches.
    fixed, of fuzzy logic: all instances share the inputs of the "context" or of the "query".
    keys: "self", the token itself, as in the paper's text; of SRAVEN also "panels", the same
        feature of the two panels before, as in the authors' code: codes of 2 x heads.
    permute, of SRAVEN: as the paper, instances show their features in the order of their rules,
        so that the last slot has the highest of the four: rarely the first rules. True shows
        them as in training, if the task permutes them; the last slot then has any of its rules.
    device: where to compute, on a copy of the model; by default where the model is.

    Labels of fuzzy logic: `target` and `prediction` of the query, `terms` (sorted), each of them
    as `term 1`, `term 2`.., `function` (the rank of the terms among all sets of as many, those
    with the lowest largest term first) and `formula`. Labels of SRAVEN, about the last slot:
    `rule`, `target`, `prediction`, `right`, and `inputs`, the two symbols before it in its row.
    """
    _check(model, instances, batch, keys)
    place = next(model.parameters()).device if device is None else torch.device(device)
    if next(model.parameters()).device != place:
        model = copy.deepcopy(model).to(place)
    make, names = _maker(model, task, split, seed, place, fixed, keys, permute)
    if isinstance(instances, int):
        instances = torch.arange(first_instance, first_instance + instances)
    with torch.no_grad():
        parts = [make(numbers) for numbers in instances.split(batch)]
    labels = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    codes = np.concatenate([part[0] for part in parts], axis=1)
    return Codes(codes, tuple(range(len(codes))), labels, names)


def _maker(
    model: Transformer,
    task: FuzzyLogicConfig | SravenConfig,
    split: str,
    seed: int,
    place: torch.device,
    fixed: str | None,
    keys: str,
    permute: bool,
) -> tuple[Callable[[Tensor], Part], dict[str, tuple[str, ...]]]:
    """What makes codes and labels of instance numbers, and the names of the labels' values."""
    if isinstance(task, SravenConfig):
        if fixed is not None:
            raise bad_value("fixed", repr(fixed), "None: SRAVEN has no inputs to fix")
        sraven = Sraven(replace(task, permute=permute and task.permute), seed, device=place)
        return partial(_sraven, model, sraven, split, keys), {"rule": RULES}
    if keys != "self":
        raise bad_value("keys", repr(keys), "'self' for fuzzy logic")
    if permute:
        raise bad_value("permute", permute, "False: fuzzy logic has no features to permute")
    return partial(_fuzzy_logic, model, FuzzyLogic(task, seed, device=place), split, fixed), {}


def collect_run(
    name_or_path: Path | str,
    member: int,
    split: str,
    instances: int | Tensor,
    *,
    step: int | None = None,
    first_instance: int = FIRST_EVALUATION_INSTANCE,
    fixed: str | None = None,
    keys: str = "self",
    permute: bool = False,
    device: torch.device | str | None = None,
    batch: int = 512,
) -> Codes:
    """Call `collect` for one member of a run, with the task and the data seed of that member.

    name_or_path: a run folder, or the name of a packaged model.
    step: load the checkpoint of this step instead of the newest one.
    The other arguments are those of `collect`.

    >>> held_out = collect_run("sraven-hyla", 0, "held_out", 100)
    >>> held_out.codes.shape  # layers, instances, heads
    (4, 100, 16)
    """
    config, model = load_member(name_or_path, member, step)
    return collect(
        model, config.task, split, instances, seed=config.members[member].seed,
        first_instance=first_instance, fixed=fixed, keys=keys, permute=permute, device=device,
        batch=batch,
    )  # fmt: skip


def collect_inputs(
    model: Transformer,
    tokens: Tensor,
    queries: Sequence[int] | Tensor = (-1,),
    keys: Sequence[int] | Tensor = (-1,),
) -> Codes:
    """The codes of all pairs of these queries and keys, on any tokens that the model takes.

    Labels: `sequence`, `query` and `key`; the pairs of a sequence follow each other.
    """
    _check(model, len(tokens), 1, "self")
    queries, keys = (x.tolist() if isinstance(x, Tensor) else x for x in (queries, keys))
    with torch.no_grad():
        by_layer = model.latent_codes(tokens, queries=queries, keys=keys)
    positions = [(at % tokens.shape[1], to % tokens.shape[1]) for at in queries for to in keys]
    pairs = [(q, k) for q in range(len(queries)) for k in range(len(keys))]
    found = attention_codes([codes.permute(0, 3, 1, 2) for codes in by_layer.values()], pairs)
    query, key = np.tile(np.array(positions).T, len(tokens))
    labels = {"sequence": found.labels["sequence"], "query": query, "key": key}
    return Codes(found.codes, tuple(by_layer), labels)


def _check(model: Transformer, instances: int | Tensor, batch: int, keys: str) -> None:
    check_single(model)
    count = instances if isinstance(instances, int) else len(instances)
    for name, value in (("instances", count), ("batch", batch)):
        if value < 1:
            raise bad_value(name, value, "a whole number of at least 1")
    if keys not in KEYS:
        raise unknown_name("keys", keys, KEYS)


def _fuzzy_logic(
    model: Transformer, task: FuzzyLogic, split: str, fixed: str | None, index: Tensor
) -> Part:
    batch = task.batch(split, index, fixed=fixed)
    inputs = batch.inputs.to(model.norm.weight.dtype)
    codes = model.latent_codes(inputs, queries=[-1], keys=[-1])
    terms_BK = to_numpy(batch.terms)
    rows = [tuple(row) for row in terms_BK.tolist()]
    formulas = {row: describe(row, task.config.variables) for row in set(rows)}
    labels = {
        "target": to_numpy(batch.query_target),
        "prediction": to_numpy(model(inputs, last=1)[..., 0, 0]),
        "terms": terms_BK,
        "function": np.array([_rank(row) for row in rows]),
        "formula": np.array([formulas[row] for row in rows]),
    }
    columns = {f"term {k + 1}": terms_BK[:, k] for k in range(terms_BK.shape[1])}
    return np.stack([to_numpy(code[:, 0, 0]) for code in codes.values()]), labels | columns


def _rank(terms: Sequence[int]) -> int:
    """The number of a set of terms among all sets of that size, ordered by their largest terms.

    >>> from itertools import combinations
    >>> sorted(_rank(terms) for terms in combinations(range(5), 2)) == list(range(10))
    True
    """
    return sum(comb(term, place) for place, term in enumerate(sorted(terms), start=1))


def _sraven(model: Transformer, task: Sraven, split: str, keys: str, index: Tensor) -> Part:
    batch, features = task.batch(split, index), task.config.features
    inputs = batch.inputs.to(model.norm.weight.dtype)
    # The slot of each column that shows the feature of the last slot; itself in the last column.
    slot_B3 = (batch.orders == batch.orders[:, 2:, -1:]).int().argmax(dim=-1)
    if keys == "self":
        by_layer = model.latent_codes(inputs, queries=[-1], keys=[-1])
        codes = [code[:, 0, 0] for code in by_layer.values()]
    else:
        panels = range(-3 * features, -features)
        by_layer = model.latent_codes(inputs, queries=[-1], keys=list(panels))
        key_B21 = (slot_B3[:, :2] + features * torch.arange(2, device=slot_B3.device)).unsqueeze(-1)
        codes = [
            code[:, 0].gather(1, key_B21.expand(-1, -1, code.shape[-1])).flatten(1)
            for code in by_layer.values()
        ]
    prediction, target = model(inputs, last=1)[:, 0].argmax(dim=-1), batch.targets[:, -1]
    before_B2 = batch.panels[:, 2, :2].gather(-1, slot_B3[:, :2, None])[..., 0]
    labels = {
        "rule": batch.target_rules[:, -1],
        "target": target,
        "prediction": prediction,
        "right": prediction == target,
        "inputs": before_B2,
    }
    return np.stack([to_numpy(c) for c in codes]), {n: to_numpy(v) for n, v in labels.items()}
