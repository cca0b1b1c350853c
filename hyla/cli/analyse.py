"""`hyla analyse`: what the latent codes of a trained model say about its tasks."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from hyla.analysis import (
    Codes,
    Decoding,
    MeanCodes,
    collect,
    decode,
    draw_embedding,
    embed,
    explained,
    mean_codes,
)
from hyla.cli import shared
from hyla.drawing import FORMATS, save
from hyla.errors import bad_value, unknown_name
from hyla.files import new_file, without_nan
from hyla.train import RunConfig
from hyla.train.trained import load_member

HOW_DECODED = (
    "Classes weigh the same, so accuracy may be below that of the majority. Explained is - where "
    "codes do not vary: nothing can be decoded from such a layer."
)


def analyse(
    name_or_path: Positional[Path],
    member: int = 0,
    layer: int = -1,
    instances: int = 2000,
    probe: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE [NAME=VALUE ...]")] = (),
    seed: int = 0,
    device: str = "cpu",
    kind: Annotated[str | None, arg(metavar="KIND", help_behavior_hint="")] = None,
    output: Annotated[Path | None, arg(metavar="FILE.npz")] = None,
    figure: Annotated[Path | None, arg(metavar="FILE.png")] = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Decode labels from the latent codes of a trained model, compare and draw the codes.

    A logistic regression is fitted to training tasks and evaluated on held-out ones, next to a
    control with shuffled labels.

    Args:
        name_or_path: A run folder, or the name of a packaged model, such as sraven-hyla.
        member: Number of the member.
        layer: The layer whose codes are compared and drawn; -1 is the last.
        instances: How many instances of each split, none of them seen in training.
        probe: Which codes: fixed=context or fixed=query for fuzzy logic; keys=panels, permute=true
            for SRAVEN.
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
    task, seed_of_data, options = config.task, config.members[member].seed, _probe_options(probe)
    get: Any = partial(collect, model, task, instances=instances, seed=seed_of_data)
    held_out = get(task.headline, **options)
    labels = held_out.labels_to("decode")
    if not labels:
        raise bad_value("task", config.task_name, "one whose instances have a label to decode")
    decoding = decode(get("train", **options), held_out, labels[0], seed=seed)
    shares = {name: explained(held_out, name) for name in held_out.labels_to("explain")}
    means = mean_codes(held_out, labels[0], number) if labels[0] in held_out.names else None
    if output is not None:
        with new_file(output, overwrite=overwrite) as handle:
            held_out.save(handle)
    if figure is not None:
        drawn = get(task.headline, **{**task.map_probe, **options})
        with new_file(figure, overwrite=overwrite) as handle:
            save(_figure(drawn, config, number, seed), handle, _extension(figure))
    if json:
        about = {"run": str(name_or_path), "member": member, "instances": instances}
        record = about | _record(decoding, shares, means, number)
        shared.write_json(without_nan(record))
        return
    console = shared.output()
    sizes = f"{config.model.kind}, {config.model.layers} layers, {config.model.heads} heads"
    about_model = f"{name_or_path}, member {member}: {sizes}, seed {seed_of_data}"
    console.print(about_model, soft_wrap=True, markup=False, highlight=False)
    _print(console, decoding, shares, means, number)
    for path in filter(None, (output, figure)):
        console.print(f"Wrote {path}", soft_wrap=True, markup=False)


def _probe_options(given: tuple[str, ...]) -> dict[str, Any]:
    """Options of a task's `probe`, as they were typed.

    >>> _probe_options(("keys=panels", "permute=true"))
    {'keys': 'panels', 'permute': True}
    """
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise bad_value("probe", repr(one), "NAME=VALUE, such as keys=panels")
        found[name] = {"true": True, "false": False}.get(value, value)
    return found


def _extension(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _check_files(output: Path | None, figure: Path | None) -> None:
    if figure is not None and _extension(figure) not in FORMATS:
        raise unknown_name("figure (its extension)", _extension(figure), FORMATS)
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
    labels = codes.labels_to("colour")
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
