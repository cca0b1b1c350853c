"""Export SRAVEN instances as records with rules, consistent answers and posterior."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from hyla.errors import bad_value, unknown_name
from hyla.files import new_file
from hyla.tasks.sraven import RULES, Sraven
from hyla.tasks.sraven.solver import Hypotheses, Solution, solve, unambiguous_batch
from hyla.tasks.sraven.text import Instance, panel_text, prompt

CHUNK = 2048
# The fields of a record, with their Parquet types.
FIELDS = {
    "seed": "int64",
    "split": "string",
    "prior": "string",
    "index": "int64",
    "features": "int64",
    "values": "int64",
    "held_out": "double",
    "permute": "bool",
    "split_seed": "int64",
    "published_splits": "bool",
    "unambiguous": "bool",
    "panels": "list<list<list<int64>>>",
    "answer": "list<int64>",
    "rules": "list<string>",
    "orders": "list<list<int64>>",
    "ambiguous": "bool",
    "hypotheses": "int64",
    "answers": "list<list<int64>>",
    "probabilities": "list<double>",
    "prompt": "string",
    "completion": "string",
}
Record = dict[str, Any]
Writer = Callable[[list[Record]], None]


def ranked_answers(solution: Solution) -> list[list[tuple[list[int], float]]]:
    """Return the answers of each instance with their probabilities, most probable first.

    >>> from hyla.tasks.sraven import SravenConfig
    >>> task = Sraven(SravenConfig(values=4))
    >>> [[(answer, probability), *others]] = ranked_answers(
    ...     solve(task.batch("all", 1).panels, task.config)
    ... )
    >>> all(probability >= other for _, other in others)
    True
    """
    pairs = list(zip(solution.answers.tolist(), solution.probability.tolist(), strict=True))
    ranked, start = [], 0
    for count in solution.answer_count.tolist():
        mine = pairs[start : start + count]
        ranked.append(sorted(mine, key=lambda pair: -pair[1]))
        start += count
    return ranked


def records(
    task: Sraven, split: str, index: range, *, prior: str | None = None, unambiguous: bool = False
) -> list[Record]:
    """Return instances with address, settings, latents, all consistent answers and posterior.

    prior: the split whose rule combinations have a uniform prior; None: that of the instances. The
    most probable answers come first. Answers that only follow from rules outside the prior have
    probability 0.

    >>> from hyla.tasks.sraven import SravenConfig
    >>> [record] = records(Sraven(SravenConfig()), "train", range(7, 8))
    >>> record["answer"] == record["panels"][2][2] and record["answer"] in record["answers"]
    True
    """
    batch = (unambiguous_batch if unambiguous else Sraven.batch)(task, split, index)
    prior = split if prior is None else prior
    if prior not in task.combinations:
        raise unknown_name("prior", prior, task.combinations)
    solution = solve(batch.panels, task.config, task.combinations[prior])
    hypotheses = torch.bincount(solution.hypotheses.instance, minlength=len(index)).tolist()
    panels, rules, orders = batch.panels.tolist(), batch.rules.tolist(), batch.orders.tolist()
    settings = asdict(task.config) | {"unambiguous": unambiguous}
    return [
        {"seed": int(task.seed), "split": split, "prior": prior, "index": index[i]}
        | settings
        | {
            "panels": panels[i],
            "answer": panels[i][2][2],
            "rules": [RULES[rule] for rule in rules[i]],
            "orders": orders[i],
            "ambiguous": len(ranked) > 1,
            "hypotheses": hypotheses[i],
            "answers": [answer for answer, _ in ranked],
            "probabilities": [probability for _, probability in ranked],
            "prompt": prompt(panels[i], task.config),
            "completion": panel_text(panels[i][2][2]),
        }
        for i, ranked in enumerate(ranked_answers(solution))
    ]


def solved(instance: Instance) -> Record:
    """Solve an instance read from JSON, under all rule combinations.

    Each answer has one example, the most probable hypothesis that implies it: for each slot of the
    last panel a rule, and the slots of the three columns that it relates. If the instance has an
    answer, it is checked.
    """
    solution = solve(instance.panels, instance.config)
    [ranked] = ranked_answers(solution)
    probability = {tuple(answer): probability for answer, probability in ranked}
    result = {
        "features": instance.config.features,
        "values": instance.config.values,
        "permute": instance.config.permute,
        "ambiguous": len(ranked) > 1,
        "hypotheses": len(solution.hypotheses.instance),
        "answers": [answer for answer, _ in ranked],
        "probabilities": [probability for _, probability in ranked],
        "examples": [_example(solution.hypotheses, answer) for answer, _ in ranked],
    }
    if instance.given is not None:
        given = tuple(instance.given)
        result |= {"given": instance.given, "given_is_consistent": given in probability}
        result |= {"given_probability": probability.get(given, 0.0)}
    return result


def _example(found: Hypotheses, answer: list[int]) -> list[dict[str, Any]]:
    agrees = (found.answers == torch.tensor(answer)).all(dim=-1).nonzero().flatten()
    best = int(agrees[found.log_weight[agrees].argmax()])
    parts = zip(*(x[best].tolist() for x in (found.rules, found.first, found.second)), strict=True)
    return [
        {"rule": RULES[rule], "slots": [first, second, slot]}
        for slot, (rule, first, second) in enumerate(parts)
    ]


def export(
    path: Path,
    task: Sraven,
    split: str,
    index: range,
    *,
    file_format: str | None = None,
    prior: str | None = None,
    unambiguous: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write instances to a Parquet or JSON lines file, which appears only when complete.

    file_format: "parquet" or "jsonl"; None: by the extension of the path. prior: as in `records`.
    progress: called with the number of instances written since the last call.
    """
    chosen = FORMATS[format_of(path, file_format)]
    if not index:
        raise bad_value("instances", len(index), "a whole number of at least 1")
    with new_file(path, overwrite=overwrite) as handle, chosen(handle) as write:
        for start in range(0, len(index), CHUNK):
            part = index[start : start + CHUNK]
            write(records(task, split, part, prior=prior, unambiguous=unambiguous))
            progress(len(part))


def format_of(path: Path, file_format: str | None = None) -> str:
    """Return the requested format, or else that of the file extension.

    >>> format_of(Path("instances.parquet"))
    'parquet'
    """
    name = path.suffix.removeprefix(".").lower() if file_format is None else file_format
    if name not in FORMATS:
        what = "format" if file_format else "format (from the extension of the file)"
        raise unknown_name(what, name, FORMATS)
    return name


@contextmanager
def _jsonl(handle: IO[bytes]) -> Iterator[Writer]:
    yield lambda part: handle.writelines(json.dumps(one).encode() + b"\n" for one in part)


@contextmanager
def _parquet(handle: IO[bytes]) -> Iterator[Writer]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

    def arrow_type(name: str) -> Any:
        if name.startswith("list<"):
            return pyarrow.list_(arrow_type(name[5:-1]))
        return pyarrow.type_for_alias(name)

    schema = pyarrow.schema([(name, arrow_type(kind)) for name, kind in FIELDS.items()])
    with ParquetWriter(handle, schema, compression="zstd") as writer:
        yield lambda part: writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


FORMATS = {"parquet": _parquet, "jsonl": _jsonl}
