"""The fused attention without its kernels: which is chosen, and the torch operator around them.

The kernels are replaced by the reference in float32 (`StandIn`), so that the operator can be tested
on a CPU.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hyla import KINDS, attend
from hyla.attention import reference
from hyla.attention.kernels import Call, KernelSpec, choice, operator

# Prime sizes: members, sequences of each, queries, keys, heads, head sizes.
MEMBERS, SEQUENCES, QUERIES, KEYS, HEADS, SIZE, VALUE_SIZE = 2, 3, 5, 7, 11, 4, 13


class StandIn:
    """What a module of kernels offers; remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []

    def forward(self, call: Call) -> tuple[Tensor, Tensor | None]:
        q, k, v, bias, lengths, deep, factors, spec = call
        self.calls.append(SimpleNamespace(q=q, bias=bias, lengths=lengths, deep=deep, spec=spec))
        whole = [q, k[0], v[0], *(x for x in (bias, lengths, deep) if x is not None)]
        assert all(x.is_contiguous() for x in whole)
        out = self._attend(q, k, v, bias, lengths, deep, factors, spec)
        softmax = spec.normaliser == "softmax"
        # In a private layout, like that of tiles.
        lse = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        return out.to(v.dtype).contiguous(), lse if softmax else None

    def backward(
        self, call: Call, grad: Tensor, out: Tensor, lse: Tensor | None, *, need_bias: bool
    ) -> tuple[Tensor | None, ...]:
        q, k, v, bias, lengths, deep, factors, spec = call
        self.calls.append(SimpleNamespace(need_bias=need_bias))
        whole = [grad, q, k[0], v[0], *(x for x in (bias, lengths, deep) if x is not None)]
        assert all(x.is_contiguous() for x in whole)
        assert (lse is None) == (spec.normaliser != "softmax")

        def gradients() -> tuple[Tensor | None, ...]:
            leaves = [
                None if x is None else x.detach().requires_grad_()
                for x in (q, k, v, bias if need_bias else None, deep)
            ]
            biases = leaves[3] if need_bias else bias
            result = self._attend(*leaves[:3], biases, lengths, leaves[4], factors, spec)
            given = [x for x in leaves if x is not None]
            found = iter(torch.autograd.grad(result, given, grad.float()))
            return tuple(
                None if leaf is None else next(found).to(leaf.dtype).contiguous() for leaf in leaves
            )

        # Inside of an operator there is no autograd; in another thread there is.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(gradients).result()

    @torch.autocast("cpu", enabled=False)
    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: Tensor | None,
        deep: Tensor | None, factors: Tensor | None, spec: KernelSpec,
    ) -> Tensor:  # fmt: skip
        q, k, v = q.float(), k.float(), v.float()
        if bias is not None:
            bias = bias.repeat_interleave(len(q) // len(bias), dim=0)
        if deep is not None:
            deep = deep.float().repeat_interleave(len(q) // len(deep), dim=0)
        allowed = reference.allowed_pairs(
            torch.arange(k.shape[1] - q.shape[1], k.shape[1]),
            torch.arange(k.shape[1]),
            causal=spec.causal,
            lengths=lengths,
            bias=bias,
        )
        code = reference.latent_code(
            q, k, spec.normaliser, scale=spec.scale, eps=spec.eps, bias=bias, allowed=allowed
        )
        if factors is not None:
            code = code * factors.repeat_interleave(len(q) // len(factors), dim=0).unsqueeze(1)
        phi = torch.relu if spec.relu else lambda x: x
        return reference.apply_value_network(code, v, spec.value_network, phi, deep)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Every backend is the stand-in, and can do everything."""
    kernels = StandIn()
    monkeypatch.setattr(operator, "_kernels", lambda backend: kernels)
    monkeypatch.setattr(choice, "unsupported_reason", lambda *arguments: None)
    return kernels


def inputs(dtype: torch.dtype = torch.float32, batch: tuple[int, ...] = (6,)) -> dict[str, Tensor]:
    shapes = {"q": (QUERIES, HEADS, SIZE), "k": (KEYS, HEADS, SIZE), "v": (KEYS, HEADS, VALUE_SIZE)}
    return {name: torch.randn(*batch, *shape).to(dtype) for name, shape in shapes.items()}


def results(tensors: dict[str, Tensor], backend: str, **options: Any) -> dict[str, Tensor]:
    """The output, and the gradients of all floating-point tensors."""
    leaves = {n: x.detach().requires_grad_() for n, x in tensors.items() if x.is_floating_point()}
    out = attend(**(tensors | leaves), backend=backend, **options)
    gradient = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    found = torch.autograd.grad(out, list(leaves.values()), gradient)
    return {"output": out.detach()} | dict(zip(leaves, found, strict=True))


def assert_same(given: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert given.keys() == expected.keys()
    for name, exact in expected.items():
        assert given[name].shape == exact.shape, name
        assert given[name].dtype == exact.dtype, name
        error = (given[name] - exact).norm() / exact.norm()
        assert error < tolerance, (name, float(error))


# What is chosen.


def test_activation_checkpointing(stand_in: StandIn) -> None:
    q, k, v = (torch.randn(2, 5, 3, 4, requires_grad=True) for _ in range(3))

    def gradients(function: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(q, k, v).square().sum(), (q, k, v))

    def fused_attend(*tensors: Tensor) -> Tensor:
        return attend(*tensors, backend="thin")

    def checkpointed(*tensors: Tensor) -> Tensor:
        return checkpoint(fused_attend, *tensors, use_reentrant=False)

    for given, expected in zip(gradients(checkpointed), gradients(fused_attend), strict=True):
        assert given.equal(expected)


def test_lengths_beyond_int32_are_no_limit(stand_in: StandIn) -> None:
    q = torch.randn(2, 5, 3, 4)
    lengths = torch.tensor([2**31, torch.iinfo(torch.int64).max])
    given = attend(q, q, q, lengths=lengths, backend="thin")
    torch.testing.assert_close(given, attend(q, q, q, backend="thin"))


def test_a_kind_without_a_nonlinearity_ignores_the_activation(stand_in: StandIn) -> None:
    attend(**inputs(), kind="linear", activation="gelu", backend="thin")
    assert not stand_in.calls[0].spec.relu


# The sets of biases.


@pytest.mark.parametrize(
    "shape, sets",
    [
        ((KEYS,), 1),
        ((1,), 1),
        ((QUERIES, KEYS), 1),
        ((QUERIES, 1), 1),
        ((1, 1, HEADS, QUERIES, KEYS), 1),
        ((1, 1, 1, 1, KEYS), 1),
        ((MEMBERS, 1, HEADS, QUERIES, KEYS), MEMBERS),
        ((MEMBERS, 1, 1, QUERIES, 1), MEMBERS),
        ((MEMBERS, SEQUENCES, HEADS, QUERIES, KEYS), MEMBERS * SEQUENCES),
        ((1, SEQUENCES, 1, QUERIES, KEYS), MEMBERS * SEQUENCES),
    ],
)
def test_sets_of_biases_are_those_of_broadcasting(shape: tuple[int, ...], sets: int) -> None:
    bias, axes = torch.randn(shape), (HEADS, QUERIES, KEYS)
    given = operator.broadcast_per_member(bias, (MEMBERS, SEQUENCES), axes)
    assert given.shape == (sets, *axes)
    assert given.is_contiguous()
    each = given.repeat_interleave(MEMBERS * SEQUENCES // sets, dim=0)
    assert each.equal(bias.expand(MEMBERS, SEQUENCES, *axes).flatten(0, 1))


def test_sets_with_one_batch_axis() -> None:
    for sets in (3, 1):
        found = operator.broadcast_per_member(torch.randn(sets, 1, 5, 7), (3,), (2, 5, 7))
        assert found.shape == (sets, 2, 5, 7)


# The operator.


def options_of(kind: str, causal: bool = False) -> tuple[Any, ...]:
    row = KINDS[kind]
    return (row.normaliser, row.value_network, row.nonlinear, causal, SIZE**-0.5, 1e-6, "thin")


@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
def test_the_operators_are_what_torch_expects(kind: str, stand_in: StandIn) -> None:
    q, k, v = inputs().values()
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    bias = torch.randn(2, HEADS, QUERIES, KEYS, requires_grad=True)
    lengths = torch.tensor([0, 7, 3, 1, 5, 7], dtype=torch.int32)
    deep = None
    if kind == "hyla+deep":
        deep = torch.randn(1, HEADS, VALUE_SIZE, VALUE_SIZE, requires_grad=True)
    options = options_of(kind, causal=True)
    with warnings.catch_warnings():
        # By opcheck itself, in PyTorch's own modules.
        warnings.simplefilter("ignore", DeprecationWarning)
        for tensors in ((bias, lengths, deep), (None, None, deep)):
            torch.library.opcheck(operator.operator, (q, k, v, *tensors, None, *options))
        given = [None if x is None else x.detach() for x in (q, k, v, bias, lengths, deep)] + [None]
        out, lse = operator.operator(*given, *options)
        for need_bias in (True, False):
            arguments = (torch.randn_like(out), *given, out, lse, *options, need_bias)
            torch.library.opcheck(operator.backward_operator, arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_output_and_gradients_are_the_reference(kind: str, stand_in: StandIn) -> None:
    tensors = inputs(batch=(MEMBERS, SEQUENCES))
    tensors["bias"] = torch.randn(MEMBERS, 1, HEADS, QUERIES, KEYS)
    tensors["bias"][1, 0, :, 2, 3:] = -torch.inf
    tensors["mask"] = torch.rand(QUERIES, KEYS) < 0.8
    tensors["lengths"] = torch.tensor([[7, 3, 1], [5, 7, 2]])
    if kind == "hyla+deep":
        tensors["deep"] = torch.randn(MEMBERS, 1, HEADS, VALUE_SIZE, VALUE_SIZE) / VALUE_SIZE**0.5
    given, expected = (
        results(tensors, backend, kind=kind, causal=True, scale=0.3, eps=1e-3)
        for backend in ("thin", "reference")
    )
    assert_same(given, expected, 1e-5)
    call = stand_in.calls[0]
    assert call.bias.shape == (MEMBERS, HEADS, QUERIES, KEYS)
    assert call.lengths.dtype == torch.int32
    assert (call.spec.scale, call.spec.eps, call.spec.causal) == (0.3, 1e-3, True)


def test_inputs_need_not_be_contiguous(stand_in: StandIn) -> None:
    lengths = torch.tensor([7, 3, 1, 5, 7, 2], dtype=torch.int32)
    tensors = inputs() | {"lengths": lengths}
    views = {
        "lengths": lengths.repeat_interleave(2)[::2],
        "q": tensors["q"].transpose(1, 2).contiguous().transpose(1, 2),
        "k": torch.cat((tensors["k"], tensors["k"]), dim=1)[:, :KEYS],
        "v": torch.stack((tensors["v"], tensors["v"]), dim=-2)[..., 0, :],
    }
    assert not any(x.is_contiguous() for x in views.values())
    assert_same(results(views, "tiles"), results(tensors, "reference"), 1e-5)


def test_the_gradient_need_not_be_contiguous(stand_in: StandIn) -> None:
    tensors = {name: x.requires_grad_() for name, x in inputs().items()}
    sums = [attend(**tensors, backend=backend).sum() for backend in ("thin", "reference")]
    given, expected = (torch.autograd.grad(total, list(tensors.values())) for total in sums)
    for ours, theirs in zip(given, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_only_a_bias_that_needs_it_gets_a_gradient(stand_in: StandIn) -> None:
    tensors = inputs()
    q, bias = tensors["q"].requires_grad_(), torch.randn(1, HEADS, QUERIES, KEYS)
    attend(**tensors, bias=bias, backend="thin").sum().backward()
    assert stand_in.calls[-1].need_bias is False
    assert q.grad is not None
    assert tensors["k"].grad is tensors["v"].grad is bias.grad is None
    attend(**tensors, mask=bias[0, 0] > 0, backend="thin").sum().backward()
    assert stand_in.calls[-1].need_bias is False
    attend(**tensors, bias=bias.requires_grad_(), backend="thin").sum().backward()
    assert stand_in.calls[-1].need_bias is True
    assert bias.grad is not None
    with torch.no_grad():
        assert not attend(**tensors, bias=bias, backend="thin").requires_grad


@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
def test_under_autocast_inputs_are_rounded_and_gradients_are_not(
    kind: str, stand_in: StandIn
) -> None:
    tensors = inputs() | {"bias": torch.randn(1, HEADS, QUERIES, KEYS)}
    if kind == "hyla+deep":
        tensors["deep"] = torch.randn(HEADS, VALUE_SIZE, VALUE_SIZE) / VALUE_SIZE**0.5
    rounded = {n: x if n == "bias" else x.bfloat16() for n, x in tensors.items()}
    expected = results(rounded, "thin", kind=kind)
    with torch.autocast("cpu", torch.bfloat16):
        given = results(tensors, "thin", kind=kind)
    assert given["output"].dtype == stand_in.calls[-2].q.dtype == torch.bfloat16
    assert stand_in.calls[-2].bias.dtype == torch.float32
    assert all(given[name].dtype == torch.float32 for name in tensors)
    assert_same({n: x.to(expected[n].dtype) for n, x in given.items()}, expected, 1e-6)


@pytest.mark.parametrize("kind", ["hyla", "softmax"])
def test_compiled_as_one_graph(kind: str, stand_in: StandIn) -> None:
    tensors = inputs(batch=(MEMBERS, SEQUENCES))
    tensors["bias"] = torch.randn(MEMBERS, 1, HEADS, QUERIES, KEYS)
    tensors["mask"] = torch.rand(QUERIES, KEYS) < 0.8
    tensors["lengths"] = torch.tensor([[7, 3, 1], [5, 7, 2]])
    leaves = [x.requires_grad_() for x in tensors.values() if x.is_floating_point()]

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=False)
    def compiled(tensors: dict[str, Tensor]) -> Tensor:
        return attend(**tensors, kind=kind, backend="thin")

    outputs = (compiled(tensors), attend(**tensors, kind=kind, backend="reference"))
    given, expected = ((x, *torch.autograd.grad(x.square().sum(), leaves)) for x in outputs)
    assert stand_in.calls
    for ours, theirs in zip(given, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_choice_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = StandIn()
    monkeypatch.setattr(operator, "_kernels", lambda backend: kernels)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # then tiles takes tensors on a CPU
    pytest.importorskip("triton")
    tensors = inputs()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(tensors: dict[str, Tensor]) -> Tensor:
        return attend(**tensors, backend="tiles")

    assert torch.allclose(compiled(tensors), attend(**tensors, backend="reference"), atol=1e-4)
    assert kernels.calls


# Under torch.func.

MAPPED = 3


@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
@pytest.mark.parametrize("shared", [(), ("bias", "deep"), ("q",), ("k", "v", "lengths")])
def test_vmap_is_a_loop(kind: str, shared: tuple[str, ...], stand_in: StandIn) -> None:
    tensors = inputs(batch=(MAPPED, MEMBERS, SEQUENCES))
    tensors["bias"] = torch.randn(MAPPED, MEMBERS, 1, HEADS, QUERIES, KEYS)
    tensors["lengths"] = torch.randint(1, KEYS + 1, (MAPPED, MEMBERS, SEQUENCES))
    if kind == "hyla+deep":
        tensors["deep"] = torch.randn(MAPPED, HEADS, VALUE_SIZE, VALUE_SIZE) / VALUE_SIZE**0.5
    names = list(tensors)
    axes = tuple(None if name in shared else 0 for name in names)
    given = [tensors[name][0] if name in shared else tensors[name] for name in names]
    differentiable = tuple(i for i, name in enumerate(names) if name != "lengths")

    def loss(*values: Tensor) -> tuple[Tensor, Tensor]:
        out = attend(**dict(zip(names, values, strict=True)), kind=kind, backend="thin")
        return out.square().sum(), out

    each = torch.func.grad(loss, argnums=differentiable, has_aux=True)
    found, out = torch.func.vmap(each, in_dims=axes)(*given)
    for index in range(MAPPED):
        alone = [x if axis is None else x[index] for x, axis in zip(given, axes, strict=True)]
        expected, exact = each(*alone)
        assert torch.allclose(out[index], exact, atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours[index], theirs, atol=1e-3, rtol=1e-4)


def test_the_gradient_of_a_vmap_is_that_of_a_loop(stand_in: StandIn) -> None:
    tensors = inputs(batch=(MAPPED, SEQUENCES))
    bias = torch.randn(1, HEADS, QUERIES, KEYS, requires_grad=True)

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, bias=bias, backend="thin")

    mapped = torch.func.vmap(one)(*tensors.values())
    # The bias is one for all: not copied for every call.
    assert stand_in.calls[-1].bias.shape == bias.shape
    looped = torch.stack([one(*(x[i] for x in tensors.values())) for i in range(MAPPED)])
    given, expected = (torch.autograd.grad(x.square().sum(), bias)[0] for x in (mapped, looped))
    assert torch.allclose(mapped, looped, atol=1e-5)
    assert torch.allclose(given, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("functional", [False, True])
def test_there_is_no_second_derivative(functional: bool, stand_in: StandIn) -> None:
    q, k, v = (x.requires_grad_() for x in inputs().values())

    def slope(q: Tensor) -> Tensor:
        def total(q: Tensor) -> Tensor:
            return attend(q, k, v, backend="thin").square().sum()

        if functional:
            return torch.func.grad(total)(q).sum()
        return torch.autograd.grad(total(q), q, create_graph=True)[0].sum()

    with pytest.raises(NotImplementedError, match=r"second derivatives .* backend='reference'"):
        torch.func.grad(slope)(q) if functional else slope(q).backward()
