"""`attend` against loops over pairs, PyTorch's attention, closed forms and its own invariances."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    ALL_KINDS,
    BATCH,
    HEADS,
    KEYS,
    QUERIES,
    SIZE,
    VALUE_SIZE,
    deep_weight,
    inputs,
    relative_error,
)
from torch import Tensor

from hyla import KINDS, Kind, attend, latent_codes
from hyla.attention import reference
from hyla.attention.kernels import choice


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, kind: str, bias: Tensor, deep: Tensor | None
) -> Tensor:
    """The definition, one key-query pair at a time, with nothing shared with the package."""
    out = torch.zeros(BATCH, QUERIES, HEADS, v.shape[-1], dtype=q.dtype)
    normaliser, network = KINDS[kind].normaliser, KINDS[kind].value_network
    phi = torch.relu if KINDS[kind].nonlinear else lambda x: x
    for b in range(BATCH):
        for i in range(QUERIES):
            scores = torch.stack(
                [
                    torch.stack([q[b, i, h] @ k[b, j, h] for h in range(HEADS)]) / math.sqrt(SIZE)
                    + bias[b, :, i, j]
                    for j in range(KEYS)
                ]
            )
            if normaliser == "softmax":
                codes = scores.exp() / scores.exp().sum(dim=0)
            elif normaliser == "rms_head":
                codes = scores / (scores.pow(2).mean(dim=1, keepdim=True) + 1e-6).sqrt()
            else:
                codes = scores
            for a, value in zip(codes, v[b], strict=True):
                if network == "linear":
                    out[b, i] += a[:, None] * phi(value)
                    continue
                z = phi(sum(a[h] * value[h] for h in range(HEADS)))
                if deep is not None:
                    z = phi(sum(a[h] * deep[h] @ z for h in range(HEADS)))
                out[b, i] += a[:, None] * z
    return out


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_attend_is_its_definition_pair_by_pair(kind: str) -> None:
    q, k, v = inputs()
    bias, deep = torch.randn(BATCH, HEADS, QUERIES, KEYS).double(), deep_weight(kind)
    given = attend(q, k, v, kind=kind, bias=bias, deep=deep)
    torch.testing.assert_close(given, by_loops(q, k, v, kind, bias, deep), rtol=1e-12, atol=1e-12)


def test_the_ten_rows_of_the_ablation_table() -> None:
    rows = {(k.normaliser, k.value_network, k.nonlinear) for k in KINDS.values()}
    assert len(KINDS) == len(rows) == 10


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_scaled_dot_product_attention(causal: bool) -> None:
    q, k, v = inputs(KEYS, KEYS)
    torch_layout = [x.transpose(1, 2) for x in (q, k, v)]
    exact = F.scaled_dot_product_attention(*torch_layout, is_causal=causal).transpose(1, 2)
    as_hypernetwork = torch.einsum(
        "bqkh,bkhd->bqhd", latent_codes(q, k, kind="softmax", causal=causal), v
    )
    torch.testing.assert_close(as_hypernetwork, exact)
    torch.testing.assert_close(attend(q, k, v, kind="softmax", causal=causal), exact)


def test_softmax_through_torch_equals_the_reference_under_every_mask() -> None:
    q, k, v = inputs()
    mask = torch.rand(BATCH, 1, QUERIES, KEYS) > 0.3
    bias = torch.randn(1, HEADS, QUERIES, KEYS).double()
    lengths = torch.tensor([3, 7])
    for options in (
        {"causal": True},
        {"mask": mask},
        {"bias": bias},
        {"lengths": lengths},
        {"causal": True, "mask": mask, "bias": bias, "lengths": lengths},
    ):
        exact = torch.einsum("bqkh,bkhd->bqhd", latent_codes(q, k, kind="softmax", **options), v)
        torch.testing.assert_close(attend(q, k, v, kind="softmax", **options), exact)


@pytest.mark.parametrize("scale", [-1.5, -0.0, 0.0, 0.7])
@pytest.mark.parametrize("tokens", [5, 67])
def test_causal_softmax_with_any_scale(scale: float, tokens: int) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(tokens, tokens))
    options = {"kind": "softmax", "causal": True, "scale": scale}
    found, exact = attend(q, k, v, **options), attend(q, k, v, **options, backend="reference")
    torch.testing.assert_close(found, exact)
    gradients = [torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (found, exact)]
    torch.testing.assert_close(*gradients)


def test_hyla_without_nonlinearity_and_rms_head_is_quadratic_in_the_scores() -> None:
    q, k, v = inputs()
    score = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(SIZE)
    closed_form = torch.einsum("bhqk,bgqk,bkgv->bqhv", score, score, v)
    torch.testing.assert_close(attend(q, k, v, kind="hyla-nonlinearity-rms_head"), closed_form)


def test_rms_head_codes_have_unit_mean_square_over_heads() -> None:
    q, k, _ = inputs()
    code = latent_codes(q, k, kind="hyla")
    expected = torch.ones(BATCH, QUERIES, KEYS).double()
    torch.testing.assert_close(code.square().mean(dim=-1), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_gradients_of_every_input(kind: str) -> None:
    q, k, v = (x[:, :3, :, :2].clone().requires_grad_() for x in inputs())
    bias = torch.randn(1, HEADS, 3, 3).double().requires_grad_()
    deep = deep_weight(kind, value_size=2)
    tensors = (q, k, v, bias) if deep is None else (q, k, v, bias, deep.requires_grad_())

    def function(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor, deep: Tensor | None = None
    ) -> Tensor:
        return attend(q, k, v, kind=kind, bias=bias, deep=deep, causal=True)

    assert torch.autograd.gradcheck(function, tensors)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_causality_by_gradients(kind: str) -> None:
    """An output has no gradient after its token, and one at every token up to it."""
    q, k, v = inputs(KEYS, KEYS)
    k.requires_grad_()
    v.requires_grad_()
    out = attend(q, k, v, kind=kind, causal=True, deep=deep_weight(kind), activation="silu")
    for i in range(KEYS):
        for gradient in torch.autograd.grad(out[:, i].sum(), (k, v), retain_graph=True):
            reached = gradient.abs().sum(dim=(0, 2, 3)) > 0
            # A key alone has softmax 1 whatever its score: no gradient reaches the first one.
            constant = KINDS[kind].normaliser == "softmax" and gradient.shape == k.shape and i == 0
            assert reached[: i + 1].all() or constant
            assert not reached[i + 1 :].any()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_causal_queries_stand_at_the_last_keys(kind: str) -> None:
    q, k, v = inputs(KEYS, KEYS)
    options = {"kind": kind, "causal": True, "deep": deep_weight(kind)}
    last_two = attend(q[:, -2:], k, v, **options)
    torch.testing.assert_close(last_two, attend(q, k, v, **options)[:, -2:])


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_way_to_mask_a_key_equals_its_absence(kind: str) -> None:
    q, k, v = inputs()
    deep = deep_weight(kind)
    exact = attend(q, k[:, :4], v[:, :4], kind=kind, deep=deep)
    mask = torch.arange(KEYS) < 4
    minus_infinity = torch.zeros(KEYS).double().masked_fill(~mask, -torch.inf)
    for options in (
        {"mask": mask.expand(BATCH, HEADS, QUERIES, KEYS)},
        {"mask": mask},
        {"lengths": torch.tensor([4, 4])},
        {"bias": minus_infinity},
    ):
        torch.testing.assert_close(attend(q, k, v, kind=kind, deep=deep, **options), exact)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_query_without_keys_gets_zero_and_zero_gradient(kind: str, biased: bool) -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    bias = torch.randn(1, HEADS, QUERIES, KEYS).double() if biased else None
    lengths = torch.tensor([0, 3])
    out = attend(q, k, v, kind=kind, bias=bias, lengths=lengths, deep=deep_weight(kind))
    assert out[0].eq(0).all()
    assert out[1].ne(0).any()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert gradient[0].eq(0).all()
        assert gradient[1].ne(0).any()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_other_batch_entries_do_not_matter(kind: str) -> None:
    q, k, v = inputs()
    deep = deep_weight(kind)
    alone = attend(q, k, v, kind=kind, deep=deep)[0]
    for x in (q, k, v):
        x[1] = torch.nan
    assert attend(q, k, v, kind=kind, deep=deep)[0].equal(alone)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    "dtype, tolerance",
    # A few roundings of the format's unit: 2^-24 = 6e-8, and 2^-9 = 2e-3 for bf16.
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)],
)
def test_low_precision_stays_near_float64(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (x.to(dtype) for x in inputs(23, 29))
    deep = deep_weight(kind, dtype=dtype)
    given = attend(q, k, v, kind=kind, deep=deep)
    assert given.dtype == dtype
    deep = None if deep is None else deep.double()
    exact = attend(q.double(), k.double(), v.double(), kind=kind, deep=deep)
    assert relative_error(given, exact) < tolerance


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_float16_scores_may_exceed_its_range_before_scaling(kind: str) -> None:
    q = torch.full((1, 3, 2, 64), 40.0).half()  # q . k = 102,400, beyond 65,504
    deep = torch.eye(64).expand(2, 64, 64).half() if kind == "hyla+deep" else None
    assert latent_codes(q, q, kind=kind).isfinite().all()
    if KINDS[kind].normaliser != "none":  # a code of 12,800 squared is beyond the range itself
        assert attend(q, q, q / 40, kind=kind, deep=deep).isfinite().all()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_the_nonlinearity_is_a_setting(activation: str) -> None:
    q, k, v = inputs()
    code = latent_codes(q, k, kind="hyla")
    phi = {"gelu": lambda x: F.gelu(x, approximate="tanh")}.get(activation)
    phi = phi or getattr(F, activation, None) or getattr(torch, activation)
    z = phi(torch.einsum("bqkh,bkhv->bqkv", code, v))
    exact = torch.einsum("bqkh,bqkv->bqhv", code, z)
    torch.testing.assert_close(attend(q, k, v, kind="hyla", activation=activation), exact)


def test_a_combination_of_your_own() -> None:
    q, k, v = inputs()
    deep = deep_weight("hyla+deep")
    kind = Kind("softmax code, deep value network", "softmax", "deep", nonlinear=True)
    code = latent_codes(q, k, kind=kind)
    z = torch.relu(torch.einsum("bqkh,bkhv->bqkv", code, v))
    z = torch.relu(torch.einsum("bqkh,huv,bqkv->bqku", code, deep, z))
    exact = torch.einsum("bqkh,bqkv->bqhv", code, z)
    torch.testing.assert_close(attend(q, k, v, kind=kind, deep=deep), exact)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "hila"}, r"kind: unknown name 'hila'\. Did you mean 'hyla'"),
        ({"kind": "linear+rmshead"}, r"Did you mean 'linear\+rms_head'"),
        ({"activation": "rellu"}, "activation: unknown name 'rellu'. Did you mean 'relu'"),
        ({"mask": torch.ones(QUERIES, KEYS)}, "mask: expected a boolean tensor"),
        (
            {"mask": torch.ones(BATCH, QUERIES, KEYS, dtype=torch.bool)},
            r"mask: expected \[keys\], \[queries, keys\], .*\[2, 3, 5, 7\] .*, got \[2, 5, 7\]",
        ),
        ({"mask": torch.ones(KEYS, QUERIES, dtype=torch.bool)}, "mask: .*got \\[7, 5\\]"),
        ({"bias": torch.ones(KEYS, dtype=torch.bool)}, "bias: expected a floating-point"),
        ({"bias": torch.ones(11)}, r"bias: expected \[keys\].*got \[11\]"),
        ({"lengths": torch.tensor([1, 2, 3])}, r"lengths: expected integers of shape \[2\]"),
        ({"lengths": torch.tensor([1.0, 2.0])}, "lengths: expected integers"),
        ({"eps": 0.0}, "eps: expected a finite number of at least 1.2e-38"),
        ({"eps": 1e-46}, "eps: expected a finite number"),
        ({"mask": [True]}, "mask: expected a tensor, got list"),
        ({"lengths": [3, 4]}, "lengths: expected a tensor, got list"),
        (
            {"kind": "hyla+deep", "deep": torch.ones(5, 3, 13, 13).double()},
            r"deep: expected \[heads, size, size\].*got \[5, 3, 13, 13\]",
        ),
        ({"eps": float("nan")}, "eps: expected a finite number"),
        ({"scale": float("inf")}, "scale: expected a finite number, got inf"),
        ({"kind": "hyla+deep"}, r"deep: expected \[heads, size, size\] = \[3, 13, 13\].*got None"),
        ({"deep": torch.ones(3, 13, 13)}, "deep: expected None for the kind 'HYLA'"),
    ],
)
def test_bad_options_name_the_argument(options: dict[str, object], message: str) -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, **options)


def test_bad_shapes_name_the_argument() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"k: expected the batch, heads and size of q"):
        attend(q, k[..., :-1], v)
    with pytest.raises(ValueError, match=r"k: expected the batch, heads and size of q"):
        attend(q, k[:, :, :-1], v)
    with pytest.raises(ValueError, match=r"v: expected torch.float64 \[2, 7, 3, 'size'\], as k"):
        attend(q, k, v[:, :-1])
    with pytest.raises(ValueError, match=r"v: expected torch\.float64"):
        attend(q, k, v.float())
    with pytest.raises(ValueError, match="q, k: expected one floating-point dtype"):
        attend(q, k.float(), v)
    with pytest.raises(ValueError, match=r"q, k: expected \[batch, tokens, heads, size\]"):
        attend(q[0, 0], k, v)
    with pytest.raises(ValueError, match="causal: expected at most one query a key"):
        attend(q, k[:, :2], v[:, :2], causal=True)


@pytest.mark.parametrize("value_size", [VALUE_SIZE, SIZE])
def test_latent_codes_are_those_that_attend_uses(value_size: int) -> None:
    q, k, v = inputs(value_size=value_size)
    code = latent_codes(q, k, kind="linear+rms_head", lengths=torch.tensor([2, 5]))
    given = attend(q, k, v, kind="linear+rms_head", lengths=torch.tensor([2, 5]))
    torch.testing.assert_close(torch.einsum("bqkh,bkhv->bqhv", code, v), given)


@pytest.mark.parametrize("kind", ["softmax", "hyla"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_has_second_derivatives_and_forward_mode(kind: str, causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 2, 4, dtype=torch.float64) for _ in range(3))

    def of(q: Tensor, backend: str | None = "reference") -> Tensor:
        return attend(q, k, v, kind=kind, causal=causal, activation="relu", backend=backend)

    assert torch.autograd.gradgradcheck(of, q.requires_grad_())
    for backend in (None, "reference"):
        _, along = torch.func.jvp(lambda q, b=backend: of(q, b), (q.detach(),), (k,))
        grad = torch.autograd.grad((of(q) * v).sum(), q)[0]
        torch.testing.assert_close((along * v).sum(), (grad * k).sum())


def test_matrices_of_a_deep_value_network_belong_to_the_last_axes_of_the_batch() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, 6, dtype=torch.float64) for _ in range(3))
    deep = torch.randn(3, 4, 6, 6, dtype=torch.float64)
    out = attend(q, k, v, kind="hyla+deep", deep=deep)
    for n in range(3):
        one = attend(q[:, n], k[:, n], v[:, n], kind="hyla+deep", deep=deep[n])
        torch.testing.assert_close(out[:, n], one)
    with pytest.raises(ValueError, match=r"deep: expected .* broadcast to \[2, 3\]"):
        attend(q, k, v, kind="hyla+deep", deep=deep[:2])


def test_unknown_parts_are_refused_by_what_would_compute_them() -> None:
    q = torch.randn(2, 7, 3, 5)
    with pytest.raises(ValueError, match="normaliser: unknown name 'nonsense'"):
        reference.latent_code(q, q, "nonsense", scale=1.0, eps=1e-6)
    code = reference.latent_code(q, q, "none", scale=1.0, eps=1e-6)
    with pytest.raises(ValueError, match="value_network: unknown name 'nonsense'"):
        reference.apply_value_network(code, q, "nonsense", torch.relu)
    with pytest.raises(ValueError, match="deep: expected"):
        reference.apply_value_network(code, q, "deep", torch.relu)


@pytest.mark.parametrize("backend", choice.KERNELS)
@pytest.mark.parametrize("part", ["normaliser", "value_network"])
def test_kernels_take_no_kind_that_they_do_not_know(backend: str, part: str) -> None:
    kind = Kind("a kind of tomorrow", "none", "mlp", nonlinear=True)
    object.__setattr__(kind, part, "nonsense")  # as an open registry would allow
    q = torch.randn(2, 7, 3, 5)
    options: tuple[Any, ...] = (q, q, q, kind, "relu", False)
    assert choice.unsupported_reason(backend, *options) is not None
    assert choice.unsupported_kind(backend, kind, "relu") is not None
    assert choice.choose(None, *options) == "reference"
