"""The Triton kernels in Triton's interpreter: output and every gradient against the reference.

The interpreter must be selected before the first import of Triton, which other tests may already
have done in this process. So each group of cases runs this file as a script in its own process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hyla.attention import KINDS, Kind, attend, kernels
from hyla.attention.kernels import Call, KernelSpec

# The interpreter multiplies bfloat16 like integers, so half precision is tested with float16.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2}
RESULTS = ("out", "dq", "dk", "dv", "dbias", "ddeep")
ALL_KINDS = {
    **KINDS,
    "softmax deep": Kind("x", "softmax", "deep", nonlinear=True),
    "none deep": Kind("y", "none", "deep", nonlinear=False),
}


@dataclass(frozen=True)
class Case:
    """Sizes are prime, and differ. A tile holds few pairs, so that there are several of them."""

    kind: str
    sequences: int = 2
    queries: int = 5
    keys: int = 11
    heads: int = 3
    size: int = 4
    value_size: int = 7
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    bias_sets: int = 0
    masked: float = 0.0
    deep_sets: int = 1
    factor_sets: int = 0
    dtype: str = "float32"
    # Keys and values are the first ones of a longer cache.
    cache: bool = False
    tile: tuple[int, int] | None = (4, 8)
    columns: int = 16
    # How many programs to fill by splitting keys and sequences; 1: no splitting.
    programs: int = 1


SQUARE = {"queries": 11, "keys": 11, "causal": True}
GROUPS: dict[str, list[Case]] = {
    "kinds": [Case(kind, causal=True, bias_sets=1, heads=2, tile=(8, 8)) for kind in ALL_KINDS],
    "plain": [Case(kind) for kind in ("softmax", "hyla", "hyla+deep")],
    "masked": [
        Case(
            kind,
            4,
            lengths=(11, 8, 0, 3),
            bias_sets=2,
            masked=0.3,
            deep_sets=2,
            heads=2,
            tile=(8, 8),
        )
        for kind in ("softmax", "linear", "hyla", "hyla-rms_head+softmax", "hyla+deep")
    ],
    "sizes": [
        Case("hyla", queries=1, keys=1, heads=1, size=2, value_size=1),
        Case("hyla-rms_head", heads=1, size=13, value_size=2, **SQUARE),
        Case("hyla", heads=17, size=2, value_size=17, cache=True),
        Case("softmax", heads=5, size=8, cache=True, **SQUARE),
        Case("hyla-rms_head+softmax", heads=5, size=2, value_size=13, cache=True, bias_sets=1),
        Case("hyla", queries=17, keys=19, heads=5, size=8, tile=None, lengths=(18, 19)),
        Case("linear+rms_head+nonlinear_value", queries=13, keys=5),
        Case("hyla", queries=3, size=37, value_size=19, causal=True, bias_sets=1, tile=(4, 16)),
        Case("softmax", queries=3, size=17, value_size=37, tile=(4, 16)),
        Case("hyla+deep", queries=3, heads=2, size=19, tile=(4, 16)),
        Case("hyla", lengths=(0, 0), bias_sets=1, tile=None),
        Case("softmax deep", heads=2, bias_sets=1, masked=1.0, tile=None),
    ],
    "splits": [
        Case("hyla", queries=1, keys=53, causal=True, programs=256, tile=(1, 16), cache=True),
        Case("hyla", 1, 3, 53, bias_sets=1, masked=0.3, programs=5),
        Case("linear", 3, 1, 53, lengths=(53, 20, 0), programs=256, tile=(1, 16)),
        Case("softmax", 1, 1, 29, causal=True, programs=256),
        Case("hyla", 6, 5, 5, causal=True, bias_sets=2, programs=16),
        Case("hyla+deep", 3, 5, 5, heads=2, bias_sets=1, programs=2),
    ],
    "factors": [
        Case("softmax", 4, factor_sets=2, bias_sets=1, masked=0.3, lengths=(11, 8, 0, 3)),
        Case("linear+rms_head", factor_sets=1, bias_sets=2, value_size=19),
        Case("hyla", 4, factor_sets=2, bias_sets=1, size=19, value_size=19, causal=True),
        Case("hyla", 3, queries=1, keys=53, factor_sets=3, programs=256, tile=(1, 16)),
        Case("hyla-rms_head+softmax", heads=5, factor_sets=1, bias_sets=1, **SQUARE),
        Case("hyla+deep", 4, heads=2, factor_sets=4, bias_sets=2, deep_sets=2, tile=(8, 8)),
        Case("hyla", heads=2, size=16, dtype="float16", factor_sets=1, bias_sets=1, tile=(8, 8)),
    ],
    "half": [
        Case(kind, heads=2, size=16, dtype="float16", causal=True, bias_sets=1, tile=(8, 8))
        for kind in ("softmax", "hyla", "hyla+deep")
    ],
}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no Triton for this system")
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_equal_the_reference(group: str) -> None:
    command = [sys.executable, __file__, group]
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    results: list[dict[str, float]] = json.loads(process.stdout)
    assert len(results) == len(GROUPS[group])
    for case, errors in zip(GROUPS[group], results, strict=True):
        # Not `<=` on the largest: NaN must fail too.
        failed = {name: e for name, e in errors.items() if not e < TOLERANCES[case.dtype]}
        assert not failed, f"{case}: relative errors {failed}"
        assert {"out", "dq", "dk", "dv"} <= errors.keys()
        assert ("dbias" in errors) == (case.bias_sets > 0)
        assert ("ddeep" in errors) == (ALL_KINDS[case.kind].value_network == "deep")


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The norm of the difference relative to what is expected; where that is 0, 0 is demanded."""
    difference = (result.double() - expected.double()).norm().item()
    norm = expected.double().norm().item()
    if norm > 0:
        return difference / norm
    return 0.0 if difference == 0 else float("inf")


def on_a_grid(x: Tensor) -> Tensor:
    """Rounded so that sums of products are exact, in whatever order a machine adds them.

    For masked heads: RMSHead divides by the scores that are left, if need be by one of 0.005 alone,
    whose rounding is an error of 6e-5 in the gradients, of the reference in float32 too. Not for
    other cases, for these values have so few digits that their loss in a kernel would not be seen.
    """
    return (x * 64).round() / 64


Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def make_inputs(case: Case) -> Inputs:
    kind, dtype = ALL_KINDS[case.kind], getattr(torch, case.dtype)
    cache = case.keys + (5 if case.cache else 0)
    rounded = on_a_grid if case.masked else lambda x: x
    q = rounded(torch.randn(case.sequences, case.queries, case.heads, case.size)).to(dtype)
    k = rounded(torch.randn(case.sequences, cache, case.heads, case.size)).to(dtype)
    k = k[:, : case.keys]
    v = torch.randn(case.sequences, cache, case.heads, case.value_size).to(dtype)[:, : case.keys]
    bias = deep = None
    if case.bias_sets:
        bias = rounded(torch.randn(case.bias_sets, case.heads, case.queries, case.keys))
        bias[torch.rand(bias.shape) < case.masked] = -torch.inf
    if kind.value_network == "deep":
        sizes = (case.deep_sets, case.heads, case.value_size, case.value_size)
        deep = (torch.randn(sizes) * case.value_size**-0.5).to(dtype)
    return q, k, v, bias, deep


def expected_results(
    case: Case, inputs: Inputs, lengths: Tensor | None, factors: Tensor | None, grad: Tensor
) -> dict[str, Tensor]:
    """By autograd in float64, from the same rounded inputs."""
    leaves = [None if x is None else x.double().requires_grad_() for x in inputs]
    q, k, v, bias, deep = leaves
    if bias is not None:
        bias = bias.repeat_interleave(case.sequences // case.bias_sets, dim=0)
    if deep is not None:
        deep = deep.repeat_interleave(case.sequences // case.deep_sets, dim=0)
    if factors is not None:
        factors = factors.double().repeat_interleave(case.sequences // case.factor_sets, dim=0)
    options = {"kind": ALL_KINDS[case.kind], "causal": case.causal, "lengths": lengths}
    out = attend(q, k, v, **options, bias=bias, deep=deep, factors=factors)
    given = [x for x in leaves if x is not None]
    gradients = iter(torch.autograd.grad(out, given, grad.double()))
    results = {"out": out}
    for name, leaf in zip(RESULTS[1:], leaves, strict=True):
        if leaf is not None:
            results[name] = next(gradients)
    return results


def run_case(case: Case) -> dict[str, float]:
    """The relative error of the output and of every gradient."""
    from hyla.attention.kernels import tiles

    tiles.PROGRAMS = case.programs
    kind = ALL_KINDS[case.kind]
    spec = KernelSpec(
        kind.normaliser, kind.value_network, kind.nonlinear, case.causal, case.size**-0.5, 1e-6
    )
    torch.manual_seed(0)
    inputs = make_inputs(case)
    lengths = None if case.lengths is None else torch.tensor(case.lengths, dtype=torch.int32)
    factors = None
    if case.factor_sets:  # two of five are 0, as in dropout
        factors = torch.rand(case.factor_sets, case.queries, case.keys).sub(0.4).relu() * 2
    grad = torch.randn(case.sequences, case.queries, case.heads, case.value_size)
    grad = grad.to(inputs[0].dtype)
    cut, cuts = None, None
    if case.tile is not None:
        cut = tiles.Tiles(*case.tile, case.columns, num_warps=4, num_stages=1)
        cuts = dict.fromkeys(("query", "key", "bias", "deep"), replace(cut, queries=4))
    q, k, v, bias, deep = inputs
    call = Call(q, k, v, bias, lengths, deep, factors, spec)
    out, lse = tiles.forward(call, tiles=cut)
    gradients = tiles.backward(call, grad, out, lse, need_bias=True, tiles=cuts)
    results = dict(zip(RESULTS, (out, *gradients), strict=True))
    expected = expected_results(case, inputs, lengths, factors, grad)
    assert {name for name, x in results.items() if x is not None} == expected.keys()
    for name in expected:
        assert results[name].shape == expected[name].shape, name
    return {name: relative_error(results[name], x) for name, x in expected.items()}


def filled_with_nan(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """So that what a kernel leaves unwritten is noticed."""
    return lambda *args: original(*args).fill_(torch.nan)


def main() -> None:
    torch.set_num_threads(1)
    kernels.empty = filled_with_nan(kernels.empty)
    results = []
    for case in GROUPS[sys.argv[1]]:
        start = time.perf_counter()
        results.append(run_case(case))
        seconds = time.perf_counter() - start
        sys.stderr.write(f"{seconds:.1f} s {case}: {results[-1]}\n")
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
