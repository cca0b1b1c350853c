"""`hyla analyse`: what the latent codes of a trained model say about its tasks."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from hyla.analysis import (
    ArithmeticAnswers,
    Codes,
    Decoding,
    MeanCodes,
    arithmetic_answers,
    collect,
    decode,
    draw_embedding,
    embed,
    explained,
    kept_answers,
    mean_codes,
)
from hyla.cli import shared
from hyla.errors import bad_value, unknown_name
from hyla.files import new_file, without_nan
from hyla.model import Transformer
from hyla.tasks.fuzzy_logic import FuzzyLogicConfig
from hyla.tasks.sraven import Sraven, SravenConfig
from hyla.tasks.sraven_draw import save
from hyla.train import RunConfig
from hyla.train.population import FIRST_EVALUATION_INSTANCE
from hyla.train.trained import load_member

PICTURES = ("png", "svg")
# What is decoded and what colours a figure, by task; what may explain the codes.
DECODED = {"sraven": "rule", "fuzzy_logic": "terms"}
EXPLAINING = ("rule", "function", "target")
COLOURS = {
    "sraven": ("rule", "prediction"),
    "fuzzy_logic": ("target", "function", "term 1", "term 2"),
}
HOW_DECODED = (
    "Classes weigh the same, so accuracy may be below that of the majority. Explained is - where "
    "codes do not vary: nothing can be decoded from such a layer."
)


def analyse(
    name_or_path: Positional[Path],
    member: int = 0,
    layer: int = -1,
    instances: int = 2000,
    keys: Annotated[str, arg(metavar="{self,panels}")] = "self",
    permute: bool = False,
    seed: int = 0,
    device: str = "cpu",
    kind: Annotated[str | None, arg(metavar="KIND", help_behavior_hint="")] = None,
    output: Annotated[Path | None, arg(metavar="FILE.npz")] = None,
    figure: Annotated[Path | None, arg(metavar="FILE.png")] = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Decode rules or terms from the latent codes of a trained model, compare and draw the codes.

    A logistic regression is fitted to training tasks and measured on held-out ones, beside a
    control with shuffled labels. For SRAVEN, the command also prints how often the answers tell
    addition from subtraction, and how many stay if a complete row is swapped for another's.

    Args:
        name_or_path: A run folder, or the name of a packaged model, such as sraven-hyla.
        member: Number of the member.
        layer: The layer whose codes are compared and drawn; -1 is the last.
        instances: How many instances of each split, none of them seen in training.
        keys: SRAVEN: the last token attending to itself, or to the two panels before it.
        permute: SRAVEN: show features as in training, not in the order of their rules.
        seed: Seed of the shuffled labels and of the figure.
        device: Where to compute: cpu, or cuda.
        kind: Kind of attention that the run uses, if it is your own, as package.module:name.
        output: Write the held-out codes and their labels to this file, for NumPy.
        figure: Draw a t-SNE of the held-out codes to this .png or .svg file.
        overwrite: Replace files that exist.
        json: Print JSON only.
    """
    _check_files(output, figure)
    if kind is not None:
        shared.typed_kind(kind)  # a run folder imports nothing
    config, model = load_member(name_or_path, member)
    number = _checked_layer(config, layer)
    model.to(shared.checked_device(device))
    options: dict[str, Any] = {"instances": instances, "keys": keys, "permute": permute}
    seed_of_data = config.members[member].seed
    get: Any = partial(collect, model, config.task, seed=seed_of_data, **options)
    held_out = get("held_out")
    decoding = decode(get("train"), held_out, DECODED[config.task_name], seed=seed)
    shares = {n: explained(held_out, n) for n in EXPLAINING if n in held_out.labels}
    means = mean_codes(held_out, "rule", number) if "rule" in held_out.labels else None
    answers, stay = _answers(model, config.task, seed_of_data, instances)
    if output is not None:
        with new_file(output, overwrite=overwrite) as handle:
            held_out.save(handle)
    if figure is not None:
        # As in the paper: the query varies, what is in context does not.
        drawn = held_out if means is not None else get("held_out", fixed="context")
        with new_file(figure, overwrite=overwrite) as handle:
            save(_figure(drawn, config, number, seed), handle, _extension(figure))
    if json:
        about = {"run": str(name_or_path), "member": member, "instances": instances}
        record = about | _record(decoding, shares, means, number)
        record |= {"arithmetic": _parts(answers), "kept_answers": stay}
        shared.write_json(without_nan(record))
        return
    console = shared.output()
    sizes = f"{config.model.kind}, {config.model.layers} layers, {config.model.heads} heads"
    about_model = f"{name_or_path}, member {member}: {sizes}, seed {seed_of_data}"
    console.print(about_model, soft_wrap=True, markup=False, highlight=False)
    _print(console, decoding, shares, means, number)
    for text in _told(answers, stay):
        console.print(text, soft_wrap=True)
    for path in filter(None, (output, figure)):
        console.print(f"Wrote {path}", soft_wrap=True, markup=False)


def _answers(
    model: Transformer, task: SravenConfig | FuzzyLogicConfig, seed: int, instances: int
) -> tuple[dict[str, ArithmeticAnswers], dict[str, float]]:
    """To held-out instances of SRAVEN, as they are shown in training; none of fuzzy logic."""
    if not isinstance(task, SravenConfig):
        return {}, {}
    first = FIRST_EVALUATION_INSTANCE
    batch = Sraven(task, seed).batch("held_out", range(first, first + instances))
    return arithmetic_answers(model, batch), kept_answers(model, batch)


def _parts(answers: dict[str, ArithmeticAnswers]) -> dict[str, Any]:
    return {rule: asdict(x) | {"told_apart": x.told_apart} for rule, x in answers.items()}


def _told(answers: dict[str, ArithmeticAnswers], stay: dict[str, float]) -> Iterator[str]:
    """One line for each rule that occurs, one for both, and one for rows."""
    results = {"addition": ("sum", "difference"), "subtraction": ("difference", "sum")}
    for rule, found in answers.items():
        right, other = results[rule]
        if found.count:
            yield (
                f"Answers under {rule}, held out: {100 * found.right:.1f} % the {right}, "
                f"{100 * found.other:.1f} % the {other} (of {found.count} where they differ)"
            )
    parts = [(x.right * x.count, x.other * x.count) for x in answers.values() if x.count]
    rightly, either = sum(x for x, _ in parts), sum(x + y for x, y in parts)
    if either:
        right_part = f"{100 * rightly / either:.1f} ± {50 / either**0.5:.1f}"
        yield (
            f"Told apart: of the answers that are the sum or the difference {right_part} % are "
            "right, 50 by chance"
        )
    if stay:
        parts_of_rows = ", ".join(f"the {row} {100 * part:.1f} %" for row, part in stay.items())
        yield (
            f"Answers that stay if a row is replaced by another instance's: {parts_of_rows} "
            "(100: not looked at)"
        )


def _extension(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _check_files(output: Path | None, figure: Path | None) -> None:
    if figure is not None and _extension(figure) not in PICTURES:
        raise unknown_name("figure (its extension)", _extension(figure), PICTURES)
    if output is not None and _extension(output) != "npz":
        raise bad_value("output", output, "the name of a .npz file")


def _checked_layer(config: RunConfig, layer: int) -> int:
    """Return the number of the layer, counted from 0; raise ValueError if the model lacks it."""
    count = config.model.layers
    if not -count <= layer < count:
        raise bad_value("layer", layer, f"a whole number from {-count} to {count - 1}")
    return layer % count


def _figure(codes: Codes, config: RunConfig, layer: int, seed: int) -> Any:
    points = embed(codes, [layer], seed=seed)[layer]
    labels = [label for label in COLOURS[config.task_name] if label in codes.labels]
    return draw_embedding(points, codes, labels, f"{config.model.kind}, layer {layer}")


def _record(
    found: Decoding, shares: dict[str, Any], means: MeanCodes | None, layer: int
) -> dict[str, Any]:
    assert found.control is not None
    by_name = partial(zip, found.names, strict=True)
    measures = {
        name: {
            "macro_f1": scores.macro_f1.tolist(),
            "accuracy": scores.accuracy.tolist(),
            "f1": dict(by_name(scores.f1.T.tolist())),
        }
        for name, scores in (("measured", found.measured), ("shuffled", found.control))
    }
    similarity = None
    if means is not None:
        names, cosine = list(means.names), means.cosine.tolist()
        similarity = {"layer": layer, "names": names, "cosine": cosine}
    return {
        "label": found.label,
        "layers": list(found.layers),
        **measures,
        "majority_accuracy": found.majority_accuracy,
        "train_counts": dict(by_name(found.train_counts.tolist())),
        "held_out_counts": dict(by_name(found.test_counts.tolist())),
        "explained": {name: by_layer.tolist() for name, by_layer in shares.items()},
        "similarity": similarity,
    }


def _print(
    console: Console,
    found: Decoding,
    shares: dict[str, Any],
    means: MeanCodes | None,
    layer: int,
) -> None:
    assert found.control is not None
    table = Table(title=f"{found.label} decoded, held out", title_justify="left")
    names = ("layer", "macro F1", "shuffled", "accuracy", "shuffled", "majority")
    for name in (*names, *(f"explained by {name}" for name in shares)):
        table.add_column(name, justify="right")
    for i, number in enumerate(found.layers):
        numbers = [
            found.measured.macro_f1[i], found.control.macro_f1[i],
            found.measured.accuracy[i], found.control.accuracy[i], found.majority_accuracy,
            *(by_layer[i] for by_layer in shares.values()),
        ]  # fmt: skip
        table.add_row(str(number), *map(_score, numbers))
    console.print(table)
    console.print(HOW_DECODED, soft_wrap=True)
    table = Table(title=f"F1 by {found.label}; - is not in both splits", title_justify="left")
    table.add_column(found.label)
    for name in ("train", "held out", *(f"layer {number}" for number in found.layers)):
        table.add_column(name, justify="right")
    for c, name in enumerate(found.names):
        scores = map(_score, found.measured.f1[:, c])
        table.add_row(name, str(found.train_counts[c]), str(found.test_counts[c]), *scores)
    console.print(table)
    if means is not None:
        console.print(_similarity_table(means, layer))


def _score(value: float) -> str:
    return f"{value:.3f}" if value == value else "-"


def _similarity_table(means: MeanCodes, layer: int) -> Table:
    title = f"Cosine similarity of mean codes by rule, layer {layer}, held out"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in means.names:
        table.add_column(name, justify="right")
    for name, row in zip(means.names, means.cosine, strict=True):
        table.add_row(name, *(f"{value:.2f}" for value in row))
    return table
