"""The kernels of wide.cu, run on the CPU: against float64, with memory that starts as NaN."""

import pytest
import torch
from emulator import emulate
from helpers import relative_error
from torch import Tensor

from hyla import KINDS, attend
from hyla.attention.kernels import KernelSpec, operator, wide

ROUNDING = {torch.bfloat16: 5e-3, torch.float16: 1e-3}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate(monkeypatch, tmp_path_factory.getbasetemp())


def errors(
    sequences: int, queries: int, keys: int, heads: int, size: int, kind: str, *,
    causal: bool = False, lengths: Tensor | None = None, dtype: torch.dtype = torch.bfloat16,
    change: float = 1.0,
) -> list[float]:  # fmt: skip
    """Of the output and the gradients of q, k and v; change: of the values of the last head."""
    q, grad = (torch.randn(sequences, queries, heads, size).to(dtype) for _ in range(2))
    k, v = (torch.randn(sequences, keys, heads, size).to(dtype) for _ in range(2))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    v[:, :, -1] *= change
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    row = KINDS[kind]
    spec = KernelSpec(row.normaliser, row.value_network, row.nonlinear, causal, size**-0.5, 1e-6)
    ours = operator.attend(*given, spec, "wide", lengths=lengths)
    theirs = attend(*exact, kind=kind, causal=causal, lengths=lengths, backend="reference")
    results = (ours, *torch.autograd.grad(ours, given, grad))
    wanted = (theirs, *torch.autograd.grad(theirs, exact, grad.double()))
    return [relative_error(result, truth) for result, truth in zip(results, wanted, strict=True)]


@pytest.mark.parametrize(
    "kind", ["hyla", "hyla-rms_head", "hyla-nonlinearity", "hyla-nonlinearity-rms_head"]
)
def test_every_kind_is_near_float64(kind: str) -> None:
    # More rows than a block has, and several tiles of columns, none of them full.
    assert max(errors(2, 37, 41, 5, 32, kind)) < ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("heads, size", [(8, 64), (16, 64), (13, 32)])
def test_sizes(heads: int, size: int) -> None:
    assert max(errors(1, 23, 23, heads, size, "hyla", causal=True)) < ROUNDING[torch.bfloat16]


# One of these is longer than a tile of the workspace, and begins within one.
@pytest.mark.parametrize("queries, keys", [(19, 53), (67, 131), (2, 3)])
@pytest.mark.parametrize("workspace", [wide.WORKSPACE_BYTES, 0])
def test_queries_and_keys(
    queries: int, keys: int, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "WORKSPACE_BYTES", workspace)
    found = errors(2, queries, keys, 3, 32, "hyla", causal=True)
    assert max(found) < ROUNDING[torch.bfloat16]


@pytest.mark.parametrize(
    "kind, heads, size",
    [("hyla", 16, 64), ("hyla-rms_head", 5, 64), ("hyla-nonlinearity", 13, 32)],
)
def test_a_sequence_too_long_for_the_workspace(
    kind: str, heads: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "WORKSPACE_BYTES", 0)
    found = errors(1, 23, 29, heads, size, kind, causal=True)
    assert max(found) < ROUNDING[torch.bfloat16]


def test_the_workspace_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.randn(5, 21, 3, 32).bfloat16().requires_grad_() for _ in range(3)]
    spec = KernelSpec("rms_head", "mlp", True, True, 0.3, 1e-6)
    lengths = torch.tensor([21, 3, 0, 17, 8])
    out = operator.attend(*tensors, spec, "wide", lengths=lengths)
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(out, tensors, grad, retain_graph=True)
    for sequences in (4, 1):
        monkeypatch.setattr(wide, "WORKSPACE_BYTES", sequences * 3 * 21 * 24 * 2 + 1)
        found = torch.autograd.grad(out, tensors, grad, retain_graph=True)
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("mode", wide.TUNING)
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("heads", [1, 8, 9, 16])
def test_a_multiprocessor_has_the_memory(mode: str, heads: int, size: int) -> None:
    tuning = wide.TUNING[mode][wide._warps(heads, size) // 2 - 1]
    taken = wide._shared_bytes(mode, heads, size, *tuning)
    assert tuning[1] * (taken + 1024) <= 228 * 1024  # 1 KiB of a block is the system's


def test_float16() -> None:
    found = errors(2, 19, 31, 7, 32, "hyla", causal=True, dtype=torch.float16)
    assert max(found) < ROUNDING[torch.float16]


def test_masked_keys_and_one_token() -> None:
    lengths = torch.tensor([0, 33, 7])
    found = errors(3, 18, 35, 3, 32, "hyla", lengths=lengths)
    assert max(found) < ROUNDING[torch.bfloat16]
    # A single pair: apart from eps, the gradients of a single head's code are exactly 0.
    assert errors(5, 1, 1, 2, 32, "hyla-rms_head")[0] < ROUNDING[torch.bfloat16]


def test_a_sequence_without_keys_is_exactly_0() -> None:
    q, k, v = (torch.randn(2, 17, 3, 32).bfloat16().requires_grad_() for _ in range(3))
    spec = KernelSpec("rms_head", "mlp", True, False, 1.0, 1e-6)
    out = operator.attend(q, k, v, spec, "wide", lengths=torch.tensor([0, 5]))
    for result in (out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))):
        assert result[0].eq(0).all()
        assert result[1].ne(0).any()


def test_a_wrong_result_is_noticed() -> None:
    assert min(errors(1, 16, 16, 3, 32, "hyla", change=1.05)) > ROUNDING[torch.bfloat16]
