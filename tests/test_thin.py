"""The kernels of thin.cu, run on the CPU: against float64, with memory that starts as NaN."""

import pytest
import torch
from emulator import emulate
from torch import Tensor

from hyla import KINDS, attend
from hyla.attention.kernels import Call, KernelSpec, operator, thin


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate(monkeypatch, tmp_path_factory.getbasetemp())


def assert_near_float64(
    batch: tuple[int, ...], queries: int, keys: int, heads: int, size: int, value_size: int,
    kind: str, *, causal: bool = False, lengths: Tensor | None = None, bias: Tensor | None = None,
    deep: Tensor | None = None, factors: Tensor | None = None, dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5, eps: float = 1e-6,
) -> None:  # fmt: skip
    q = torch.randn(*batch, queries, heads, size).to(dtype)
    k = torch.randn(*batch, keys, heads, size).to(dtype)
    v = torch.randn(*batch, keys, heads, value_size).to(dtype)
    grad = torch.randn(*batch, queries, heads, value_size).to(dtype)
    names = {"q": q, "k": k, "v": v, "bias": bias, "deep": None if deep is None else deep.to(dtype)}
    there = {name: x for name, x in names.items() if x is not None}
    exact = {name: x.double().requires_grad_() for name, x in there.items()}
    given = {name: x.clone().requires_grad_() for name, x in there.items()}
    row = KINDS[kind]
    spec = KernelSpec(row.normaliser, row.value_network, row.nonlinear, causal, size**-0.5, eps)
    ours = operator.attend(**given, spec=spec, backend="thin", lengths=lengths, factors=factors)
    options = {"kind": kind, "causal": causal, "lengths": lengths, "eps": eps, "factors": factors}
    theirs = attend(**exact, **options, backend="reference")
    results = [ours, *torch.autograd.grad(ours, list(given.values()), grad)]
    wanted = [theirs, *torch.autograd.grad(theirs, list(exact.values()), grad.double())]
    for name, result, truth in zip(("out", *there), results, wanted, strict=True):
        assert result.isfinite().all(), name
        error = (result.double() - truth).norm()
        assert error <= tolerance * truth.norm(), (name, float(error / truth.norm()))


THIN_KINDS = [name for name, kind in KINDS.items() if kind.value_network != "deep"]


@pytest.mark.parametrize("kind", THIN_KINDS)
def test_every_kind_is_near_float64(kind: str) -> None:
    # Two members of 19 sequences, more than one warp takes; seven heads over lanes of four each.
    bias = torch.randn(2, 1, 7, 5, 11)
    bias[1, :, 2, 3] = -torch.inf
    bias[0, :, :, 4, 7:] = -torch.inf
    assert_near_float64((2, 19), 5, 11, 7, 8, 8, kind, bias=bias)


@pytest.mark.parametrize("kind", ["softmax", "linear", "hyla"])
@pytest.mark.parametrize("heads, size, value_size", [(1, 64, 32), (2, 32, 32), (3, 18, 20)])
def test_heads_split_over_lanes(heads: int, size: int, value_size: int, kind: str) -> None:
    # With the usual eps, RMSHead reduces a single head to its sign, which has almost no gradient.
    eps = 0.1 if heads == 1 else 1e-6
    bias = torch.randn(2, 1, heads, 5, 11)
    bias[1, :, heads - 1, 3] = -torch.inf
    bias[0, :, :, 4, 7:] = -torch.inf
    place = (2, 19), 5, 11, heads, size, value_size, kind
    assert_near_float64(*place, bias=bias, eps=eps)
    lengths, half = torch.tensor([[3], [0]]).expand(2, 19), torch.bfloat16
    assert_near_float64(*place, causal=True, lengths=lengths, dtype=half, eps=eps, tolerance=2e-2)


@pytest.mark.parametrize("heads, value_size", [(16, 4), (8, 2), (7, 3), (5, 1)])
def test_a_deep_value_network_is_near_float64(heads: int, value_size: int) -> None:
    bias, deep = torch.randn(2, 1, heads, 5, 11), torch.randn(2, 1, heads, value_size, value_size)
    bias[0, :, :, 4, 7:] = -torch.inf
    place = (2, 19), 5, 11, heads, 4, value_size, "hyla+deep"
    assert_near_float64(*place, bias=bias, deep=deep)
    assert_near_float64(*place, bias=bias[:1], deep=deep)  # one bias for both members
    assert_near_float64(*place, bias=bias.repeat(1, 19, 1, 1, 1), deep=deep)  # one a sequence
    assert_near_float64(*place, deep=deep[0])
    lengths = torch.tensor([[3], [0]]).expand(2, 19)
    assert_near_float64(*place, causal=True, lengths=lengths, deep=deep)
    half = torch.bfloat16
    assert_near_float64(*place, bias=bias, deep=deep, dtype=half, tolerance=2e-2)


@pytest.mark.parametrize("kind", THIN_KINDS)
def test_factors_of_the_code(kind: str) -> None:
    factors = torch.randn(2, 1, 5, 11).relu() * 2  # half of them are 0, as in dropout
    bias = torch.randn(2, 1, 7, 5, 11)
    bias[0, :, :, 4, 7:] = -torch.inf
    assert_near_float64((2, 19), 5, 11, 7, 8, 8, kind, bias=bias, factors=factors)
    assert_near_float64((2, 19), 5, 11, 16, 4, 4, kind, bias=bias[:1, :, :1], factors=-factors)
    lengths = torch.tensor([[3], [0]]).expand(2, 19)
    masked = {"causal": True, "lengths": lengths, "factors": factors[0, 0]}
    assert_near_float64((2, 19), 5, 11, 2, 32, 32, kind, **masked)
    half = torch.bfloat16
    assert_near_float64((2, 19), 5, 11, 16, 4, 4, kind, **masked, dtype=half, tolerance=2e-2)


def test_factors_of_a_deep_code() -> None:
    factors = torch.randn(2, 19, 5, 11).relu() * 2  # every sequence has its own
    bias, deep = torch.randn(2, 1, 7, 5, 11), torch.randn(2, 1, 7, 3, 3)
    place = (2, 19), 5, 11, 7, 4, 3, "hyla+deep"
    assert_near_float64(*place, bias=bias, deep=deep, factors=factors)
    assert_near_float64(*place, deep=deep, factors=factors[:, :1], causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["hyla", "softmax", "linear"])
def test_masks(kind: str, causal: bool) -> None:
    # More queries and keys than a block has rows, in every kernel.
    lengths = torch.tensor([0, 1, 17, 5, 3])
    assert_near_float64((5,), 13, 17, 3, 2, 4, kind, causal=causal, lengths=lengths)


@pytest.mark.parametrize(
    "heads, size, value_size",
    [(16, 4, 4), (8, 2, 2), (5, 3, 7), (17, 4, 2), (31, 16, 16), (64, 16, 16)],
)
def test_sizes(heads: int, size: int, value_size: int) -> None:
    assert_near_float64((3,), 1, 5, heads, size, value_size, "hyla")


@pytest.mark.parametrize("kind", ["softmax", "linear", "hyla"])
def test_the_widest_models_of_sraven(kind: str) -> None:
    assert_near_float64((2, 3), 36, 36, 64, 4, 4, kind, bias=torch.randn(2, 1, 64, 36, 36))


@pytest.mark.parametrize(
    "kind, many", [("softmax", False), ("linear", False), ("hyla", False), ("hyla", True)]
)
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision(
    dtype: torch.dtype, tolerance: float, kind: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thin, "MULTIPROCESSORS", 0 if many else thin.MULTIPROCESSORS)
    options = {"bias": torch.randn(1, 16, 6, 7), "causal": True}
    assert_near_float64((37,), 6, 7, 16, 4, 4, kind, **options, dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_values_with_a_mean_cost_no_digits(dtype: torch.dtype, tolerance: float) -> None:
    q, k, v, grad = torch.randn(4, 3, 36, 5, 4).to(dtype).unbind()
    v = v + 16
    spec = KernelSpec("softmax", "linear", False, False, 0.5, 0.0)
    inputs = [q.requires_grad_(), k, v]
    (ours,) = torch.autograd.grad(operator.attend(*inputs, spec, "thin"), q, grad)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out = attend(*exact, kind="softmax", backend="reference")
    (theirs,) = torch.autograd.grad(out, exact[0], grad.double())
    assert (ours.double() - theirs).norm() < tolerance * theirs.norm()


def test_threads_hold_more_where_there_is_room_for_it() -> None:
    def numbers(sequences: int, dtype: torch.dtype, kind: str) -> int:
        q, row = torch.empty(1, 36, 16, 4, dtype=dtype).expand(sequences, -1, -1, -1), KINDS[kind]
        spec = KernelSpec(row.normaliser, row.value_network, row.nonlinear, False, 0.5, 0.0)
        problem = thin._Problem(Call(q[:1], q[:1], q[:1], None, None, None, None, spec))
        problem.q = q
        return problem._tuning("forward")[0]

    half = torch.float16
    assert numbers(4096, half, "hyla") == numbers(4096, torch.bfloat16, "linear") == 32
    assert numbers(4096, torch.float32, "hyla") == 16
    assert numbers(4096, half, "softmax") == 16  # more would be spilled
    assert numbers(384, half, "hyla") == 16  # more would leave the GPU idle


@pytest.mark.parametrize("kind", ["softmax", "hyla-rms_head+softmax"])
def test_a_large_bias_of_the_softmax(kind: str) -> None:
    # Lanes without a sequence have no log-sum-exp to subtract from the bias.
    bias = torch.randn(1, 2, 3, 5) + 200
    assert_near_float64((3,), 3, 5, 2, 4, 4, kind, bias=bias, tolerance=1e-4)


@pytest.mark.parametrize("heads, size", [(7, 8), (1, 64)])
@pytest.mark.parametrize("kind", ["softmax", "hyla-rms_head+softmax"])
def test_a_softmax_of_large_scores(kind: str, heads: int, size: int) -> None:
    bias = 40 * torch.randn(2, 1, heads, 5, 11)
    bias[0, :, :, 2] = torch.arange(-50.0, 60.0, 10)  # every key is the highest so far
    bias[1, :, heads // 2, 1] = -torch.inf
    assert_near_float64((2, 19), 5, 11, heads, size, size, kind, bias=bias, tolerance=1e-4)


def test_a_softmax_does_not_hide_nan() -> None:
    q, k, v = (torch.randn(3, 5, 2, 4) for _ in range(3))
    q[1, 2] = torch.nan
    out = operator.attend(q, k, v, KernelSpec("softmax", "linear", False, True, 0.5, 0.0), "thin")
    assert out[1, 2].isnan().all()
    assert out.isnan().sum() == 2 * 4


@pytest.mark.parametrize("key", [0, 1, 4])
def test_infinite_scores_of_a_softmax(key: int) -> None:
    q, k, v = (torch.randn(2, 5, 1, 4) for _ in range(3))
    q[:, 2], k[:, key] = 1e30, torch.tensor([1e30, -1e30])[:, None, None]
    spec = KernelSpec("softmax", "linear", False, False, 0.5, 0.0)
    out = operator.attend(q, k, v, spec, "thin")
    assert out[0, 2].isnan().all()  # inf - inf, as in the reference
    others = [i for i in range(5) if i != key]
    without = operator.attend(q[1:], k[1:, others], v[1:, others], spec, "thin")
    torch.testing.assert_close(out[1:, 2], without[:, 2])  # exp(-inf) is 0


def test_nan_is_not_hidden_by_a_relu() -> None:
    q = torch.randn(3, 5, 2, 4)
    v = q.clone()
    v[1, 2, 0, 3] = torch.nan
    spec = KernelSpec("rms_head", "mlp", True, False, 0.5, 1e-6)
    out = operator.attend(q, q, v, spec, "thin")
    assert out[1, ..., 3].isnan().all()
    assert out[0].isfinite().all()
