"""Registered kinds: right results, names in configurations, nothing imported by a file."""

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kinds
import pytest
import torch
from helpers import BATCH, HEADS, KEYS, QUERIES, SIZE, inputs, run, tiny_run
from torch import Tensor

import hyla as package
from hyla import KINDS, KeyValueCache, Kind, ModelConfig, MultiHeadAttention, attend, stack
from hyla.analysis.activity import has_units
from hyla.attention.kernels import choice
from hyla.attention.registry import NORMALISERS, VALUE_NETWORKS
from hyla.attention.variants import BUILT_IN_KINDS, name_of
from hyla.train import RunConfig, task_run
from hyla.train.runs import read_config
from hyla.train.store import read_run
from hyla.train.trained import load_member
from hyla.train.training import Training

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def mine() -> Iterator[dict[str, Kind]]:
    with kinds.own_registries():
        yield kinds.register()


def deep_of(kind: Kind, size: int) -> Tensor | None:
    return torch.randn(HEADS, size, size).double() if kind.uses_deep else None


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, kind: Kind, shown: Tensor, factors: Tensor, deep: Any
) -> Tensor:
    """The definition of the kinds, one query and head at a time, nothing shared with them."""
    out = torch.zeros(BATCH, QUERIES, HEADS, v.shape[-1]).double()
    for b in range(BATCH):
        for i in range(QUERIES):
            keys = shown[b, i].nonzero().flatten().tolist()
            if not keys:
                continue
            score = torch.stack([(k[b, j] * q[b, i]).sum(-1) / math.sqrt(SIZE) for j in keys])
            code = {
                "sigmoid": lambda s: 1 / (1 + (-s).exp()),
                "centred": lambda s: s - s.sum(0) / (len(s) + 1e-6),
                "rms_head": lambda s: s / (s.square().mean(1, keepdim=True) + 1e-6).sqrt(),
            }[kind.normaliser](score)
            for a, j in zip(code, keys, strict=True):
                a = a * factors[i, j]
                z = sum(a[h] * v[b, j, h] for h in range(HEADS))
                z = z * torch.sin(z)
                for h, value in enumerate(v[b, j]):
                    received = {"mlp": z, "linear": value, "gated": z * value}
                    if deep is not None:
                        turned = deep[h] @ value
                        received["turned"] = turned * torch.sin(turned)
                    out[b, i, h] += a[h] * received[kind.value_network]
    return out


@pytest.mark.parametrize("name", kinds.NAMES)
def test_a_registered_kind_is_its_definition_under_every_mask(
    mine: dict[str, Kind], name: str
) -> None:
    q, k, v = inputs()
    kind, deep = mine[name], deep_of(mine[name], v.shape[-1])
    mask, factors = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.8, torch.rand(QUERIES, KEYS)
    causal = torch.arange(KEYS) <= torch.arange(KEYS - QUERIES, KEYS)[:, None]
    for lengths in (torch.tensor([KEYS, 3]), torch.tensor([0, 5])):
        shown = mask[:, 0] & causal & (torch.arange(KEYS) < lengths[:, None, None])
        found = attend(
            q, k, v, kind=kind, activation="wave", deep=deep, causal=True, mask=mask,
            lengths=lengths, factors=factors,
        )  # fmt: skip
        exact = by_loops(q, k, v, kind, shown, factors, deep)
        torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", kinds.NAMES)
def test_gradients_of_a_registered_kind(mine: dict[str, Kind], name: str) -> None:
    kind = mine[name]
    q, k, v = (x[:, :3, :, :2].clone().requires_grad_() for x in inputs())
    bias = torch.randn(1, HEADS, 3, 3).double().requires_grad_()
    deep = deep_of(kind, 2)
    mask = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    options: dict[str, Any] = {"causal": True, "mask": mask, "lengths": torch.tensor([3, 0])}
    options |= {"activation": "wave", "factors": torch.rand(3, 3)}

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, deep: Any = None) -> Tensor:
        return attend(q, k, v, kind=kind, bias=bias, deep=deep, **options)

    tensors = (q, k, v, bias) if deep is None else (q, k, v, bias, deep.requires_grad_())
    assert torch.autograd.gradcheck(function, tensors)


def test_what_needs_to_know_a_value_network_refuses_a_registered_one() -> None:
    layer, x = layer_of("rms_head.gated.nonlinear"), torch.randn(BATCH, KEYS, 13).double()
    with pytest.raises(ValueError, match="gated"):
        package.value_networks(layer, x)
    assert not has_units(config("rms_head.gated.nonlinear"))
    assert has_units(config("mine"))
    # With a registered normaliser alone, the networks are known: the sum over keys is the output.
    layer = layer_of("mine")
    y = package.value_networks(layer, x)(x).sum(dim=-2) + layer.output.bias
    torch.testing.assert_close(y, layer(x))


def layer_of(kind: str | Kind, **options: Any) -> MultiHeadAttention:
    settings: dict[str, Any] = {"causal": True, "positions": "t5", "buckets": 5} | options
    return MultiHeadAttention(
        13, HEADS, head_size=5, kind=kind, activation="wave", dtype=torch.float64, **settings
    )


@pytest.mark.parametrize("name", kinds.NAMES)
def test_a_registered_kind_as_a_layer(name: str) -> None:
    """By name: decoding, a population, chosen codes, dropout."""
    layer, x = layer_of(name), torch.randn(BATCH, KEYS, 13).double()
    cache, full = KeyValueCache(KEYS), layer(x)
    steps = [layer(x[:, :2], cache=cache)]
    steps += [layer(x[:, i : i + 1], cache=cache) for i in range(2, KEYS)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full)
    torch.testing.assert_close(
        layer.codes(x, queries=[-1, 2], keys=[0, 3]), layer.codes(x)[:, [-1, 2]][:, :, [0, 3]]
    )
    layers, y = [layer, layer_of(name), layer_of(name)], torch.randn(3, BATCH, KEYS, 13).double()
    together = stack(layers)(y)
    for member, (one, part) in enumerate(zip(layers, y, strict=True)):
        torch.testing.assert_close(together[member], one(part))
    dropped = layer_of(name, attention_dropout=0.3)
    assert not dropped(x).equal(dropped(x))
    assert dropped.eval()(x).equal(dropped(x))


@pytest.mark.parametrize("backend", choice.KERNELS)
def test_no_kernel_takes_a_registered_part(mine: dict[str, Kind], backend: str) -> None:
    # The names of parts of another sort mean nothing either.
    for name in ("linear", "mlp"):
        package.register_normaliser(name, kinds.sigmoid)
        mine[name] = Kind(name, name, "linear", nonlinear=False)
    package.register_value_network("softmax", kinds.gated)
    mine["softmax"] = Kind("x", "none", "softmax", nonlinear=False)
    q = torch.randn(BATCH, KEYS, HEADS, 5)
    for kind in mine.values():
        deep = deep_of(kind, 5)
        deep = None if deep is None else deep.float()
        options: dict[str, Any] = {"kind": kind, "deep": deep}
        assert choice.choose(None, q, q, q, kind, "relu", False) == "reference"
        exact = attend(q, q, q, backend="reference", **options)
        assert attend(q, q, q, **options).equal(exact)
        assert choice.unsupported_kind(backend, kind, "relu")
        with pytest.raises(ValueError, match=rf"^backend: .*{backend}"):
            attend(q, q, q, backend=backend, **options)
    with pytest.raises(ValueError, match=rf"^backend: .*{backend}"):
        attend(q, q, q, kind="hyla", activation="wave", backend=backend)
    assert choice.unsupported_kind(backend, KINDS["hyla"], "wave")
    assert choice.unsupported_kind(backend, KINDS["hyla"], "relu") is None


def test_a_name_is_registered_once() -> None:
    for register, name, function, other in (
        (package.register_normaliser, "sigmoid", kinds.sigmoid, kinds.centred),
        (package.register_value_network, "gated", kinds.gated, kinds.turned),
        (package.register_activation, "wave", kinds.wave, torch.sin),
        (package.register_kind, "mine", KINDS["mine"], KINDS["hyla"]),
    ):
        options = {"over_keys": False} if name == "sigmoid" else {}
        assert register(name, function, **options) is function
        with pytest.raises(ValueError, match=name):
            register(name, other, **options)
    with pytest.raises(ValueError, match="sigmoid"):
        package.register_normaliser("sigmoid", kinds.sigmoid, over_keys=True)
    for wrong in ("", "a.b", "a:b", "a b", "a/b", 3):
        with pytest.raises(ValueError, match="name of the"):
            package.register_activation(wrong, kinds.wave)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="kind"):
        package.register_kind("another", "hyla")  # type: ignore[arg-type]


def run_of(kind: str | Kind, task: str = "sraven") -> RunConfig:
    made = task_run(task)
    return replace(made, model=replace(made.model, kind=kind))


def config(kind: str | Kind, **options: Any) -> ModelConfig:
    return ModelConfig(5, 5, layers=1, width=11, heads=3, head_size=2, kind=kind, **options)


@pytest.mark.parametrize("name", [*kinds.NAMES, *BUILT_IN_KINDS])
def test_a_kind_is_stored_by_a_name_that_is_found_again(mine: dict[str, Kind], name: str) -> None:
    kind = mine.get(name) or KINDS[name]
    by_object, by_name = config(kind), config(name)
    assert by_object == by_name == ModelConfig.from_json(by_object.to_json())
    assert by_object.kind == json.loads(by_object.to_json())["kind"] == name
    for model in (package.build(by_object, 0), package.Transformer(by_name)):
        assert model.blocks[0].attention.kind.parts == kind.parts
    for task in ("sraven", "fuzzy_logic"):
        made = run_of(kind, task)
        assert RunConfig.from_json(made.to_json()) == made
        assert made.model.kind == name
    x = torch.randn(BATCH, KEYS, 5)
    assert package.build(by_object, 0)(x).shape == x.shape


def test_the_title_is_no_part_of_a_kind() -> None:
    for name, kind in KINDS.items():
        renamed = replace(kind, title="Another")
        assert name_of(renamed) == (name if name in BUILT_IN_KINDS else "sigmoid.mlp.nonlinear")
    assert config("rms_head.mlp.nonlinear") == config("hyla")


def key(kind: str | Kind) -> str:
    made = run_of(kind)
    return Training.of(made, made.members[0]).key


def test_the_parts_of_a_kind_are_in_the_key() -> None:
    mine = KINDS["mine"]
    # By its name, by its parts, and under another title and name: the same training.
    assert key("mine") == key(mine) == key("sigmoid.mlp.nonlinear")
    package.register_kind("renamed", replace(mine, title="Renamed"))
    assert key("renamed") == key("mine")
    others = [
        replace(mine, **{part: value})
        for part, value in (
            ("normaliser", "centred"), ("value_network", "gated"), ("nonlinear", False),
        )
    ]  # fmt: skip
    keys = [key(kind) for kind in (mine, *others, *BUILT_IN_KINDS)]
    assert len(set(keys)) == len(keys)
    assert {key(replace(KINDS[name], title="x")) for name in BUILT_IN_KINDS} == {
        key(name) for name in BUILT_IN_KINDS
    }


def test_a_run_of_a_registered_kind_is_loaded_only_where_it_is_registered(tmp_path: Path) -> None:
    for name in ("mine", "centred.turned.nonlinear"):
        trained = tiny_run("sraven", kind=name, steps=7)
        path = tmp_path / name
        run(trained, path)
        assert load_member(path)[0] == trained
        assert read_run(path)[0].key == Training.of(trained, trained.members[0]).key
        before = dict(KINDS), dict(NORMALISERS)
        KINDS.pop("mine", None)
        NORMALISERS.pop("centred")
        part = {"mine": "hyla.register_kind('mine'"}.get(name, "hyla.register_normaliser('centred'")
        for load in (package.load, read_run):
            with pytest.raises(ValueError) as error:  # noqa: PT011  its words are compared below
                load(path)
            assert part in str(error.value)
        for registry, entries in zip((KINDS, NORMALISERS), before, strict=True):
            registry.update(entries)
        assert package.load(path).config.kind == name


MODULE = """
import hyla, torch
cubed = hyla.register_activation("cubed", lambda x: x**3)
named = hyla.Kind("Named", "softmax", "deep", nonlinear=True)
hyla.register_kind("named+kind", named)
unnamed = hyla.Kind("Unnamed", "none", "deep", nonlinear=False)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "kinds_of_a_test").mkdir()
    (tmp_path / "kinds_of_a_test" / "__init__.py").write_text("")
    (tmp_path / "kinds_of_a_test" / "inner.py").write_text(MODULE)
    (tmp_path / "kinds_of_a_test" / "broken.py").write_text("import nothing_like_this")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "kinds_of_a_test.inner"
    for name in [name for name in sys.modules if name.startswith("kinds_of_a_test")]:
        del sys.modules[name]


def test_a_kind_is_imported_where_that_is_asked_for(module: str) -> None:
    assert package.import_kind(f"{module}:named") == "named+kind"
    assert package.import_kind(f"{module}:named+kind") == "named+kind"
    assert package.import_kind(f"{module}:unnamed") == "none.deep"
    for wrong in (f"{module}:missing", f"{module}:cubed", "no_such_package.x:y", "hyla", "a b:c"):
        with pytest.raises(ValueError, match=r"^kind: "):
            package.import_kind(wrong)
    with pytest.raises(ModuleNotFoundError, match="nothing_like_this"):
        package.import_kind("kinds_of_a_test.broken:x")


def test_a_configuration_imports_nothing(module: str) -> None:
    stored = config("hyla").to_dict() | {"kind": f"{module}:named"}
    q = torch.randn(1, 3, 2, 5)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: ModelConfig.from_dict(stored),
        lambda: RunConfig.from_dict(run_of("hyla").to_dict() | {"model": stored}),
        lambda: config(f"{module}:named"),
        lambda: attend(q, q, q, kind=f"{module}:named"),
        lambda: config("named+kind"),
        lambda: config(3),  # type: ignore[arg-type]
    )
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"^kind: "):
            attempt()
    assert module not in sys.modules


GUIDE = (ROOT / "docs" / "kinds.md").read_text()


def test_the_guide_runs(tmp_path: Path) -> None:
    """The example is short, and its commands train and analyse: here with tiny models."""
    example, part = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (shell,) = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len((example + shell).splitlines()) <= 40
    (tmp_path / "mypackage.py").write_text(example)
    sizes = "--steps 3 --batch 5 --layers 1 --width 12 --evaluation-instances 7 --no-compiled"
    tiny = {"train": f"{sizes} --device cpu", "analyse": "--instances 200"}
    commands = [shlex.split(line) for line in shell.splitlines()]
    assert [command[:2] for command in commands] == [
        ["python", "mypackage.py"], ["hyla", "train"], ["hyla", "analyse"],
    ]  # fmt: skip
    for program, name, *rest in commands:
        # As the command `hyla` is started: without the current folder among those of packages.
        started = ["-P", "-m", "hyla.cli", name] if program == "hyla" else [name]
        arguments = [sys.executable, *started, *rest, *tiny.get(name, "").split()]
        result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        if name == "mypackage.py":
            stored = result.stdout.strip()
    assert read_config(tmp_path / "runs" / "mine")[0]["model"]["kind"] == stored
    with pytest.raises(ValueError, match=f"register_kind\\('{stored}'"):
        package.load(tmp_path / "runs" / "mine")
    del VALUE_NETWORKS["gated"]  # the guide has one of that name too
    exec(compile(part, "docs/kinds.md", "exec"), {})


def test_a_command_imports_the_kind_that_is_typed(
    hyla: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    train = "train sraven --dry-run --kind"
    for given, stored in (
        (f"{module}:named", "named+kind"), (f"{module}:hyla", "hyla"),
        (f"{module}:unnamed", "none.deep"), ("softmax.deep.nonlinear", "softmax.deep.nonlinear"),
    ):  # fmt: skip
        assert hyla.json(train, given)["config"]["model"]["kind"] == stored
    activation = hyla.json(train, f"{module}:hyla", "--activation", "cubed")
    assert activation["config"]["model"]["activation"] == "cubed"
    for wrong in (f"{module}:missing", "no_such_package.x:y", "a b:c", "nobody"):
        assert hyla.error(train, wrong).startswith("error: --kind: ")
