"""`torch.compile(fullgraph=True)` and `torch.export`, for every kind."""

import shutil

import pytest
import torch
from helpers import ALL_KINDS
from torch import nn

from hyla import ModelConfig, Transformer, build, stack

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile on the CPU needs a C++ compiler",
)


def model(kind: str, **options: object) -> Transformer:
    sizes = {"input_size": 5, "output_size": 2, "layers": 1, "width": 11, "heads": 3}
    config = ModelConfig(**sizes, head_size=2, hidden_size=13, buckets=7, kind=kind, **options)
    return build(config, seed=0)


def gradients(module: nn.Module, out: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(out.square().sum(), list(module.parameters())))


@needs_compiler
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_compiled_without_a_graph_break(kind: str) -> None:
    torch.compiler.reset()
    eager, x = model(kind, causal=True), torch.randn(2, 7, 5)
    given = torch.compile(eager, fullgraph=True)(x)
    exact = eager(x)
    torch.testing.assert_close(given, exact, rtol=1e-4, atol=1e-5)
    for theirs, ours in zip(gradients(eager, given), gradients(eager, exact), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-4)


DYNAMIC = [(kind, "t5") for kind in ALL_KINDS] + [("hyla", "none"), ("hyla", "rotary")]


@pytest.mark.parametrize("kind, positions", DYNAMIC)
def test_dynamic_shapes_without_a_graph_break(kind: str, positions: str) -> None:
    torch.compiler.reset()
    eager = model(kind, causal=True, positions=positions)
    compiled = torch.compile(eager, fullgraph=True, dynamic=True, backend="eager")
    for batch, tokens in ((2, 7), (3, 5)):
        x = torch.randn(batch, tokens, 5)
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-5)


@needs_compiler
def test_compiled_population() -> None:
    torch.compiler.reset()
    population = stack([model("hyla", feed_forward="moe") for _ in range(3)])
    x = torch.randn(3, 2, 7, 5)
    given = torch.compile(population, fullgraph=True)(x)
    torch.testing.assert_close(given, population(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_exported_with_any_batch_and_length(kind: str) -> None:
    eager = model(kind, causal=True)
    shapes = {"tokens": {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2)}}
    program = torch.export.export(eager, (torch.randn(2, 7, 5),), dynamic_shapes=shapes)
    for batch, tokens in ((2, 7), (5, 3), (3, 11)):
        x = torch.randn(batch, tokens, 5)
        torch.testing.assert_close(program.module()(x), eager(x))
