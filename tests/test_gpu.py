"""The same definitions on a CUDA device: precision, masks, populations, compilation."""

import pytest
import torch
from helpers import ALL_KINDS, deep_weight, inputs, relative_error

from hyla import ModelConfig, attend, build, stack
from hyla.layers import linear, parts_of_sum

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("size", [8, 13])
@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)],
)
def test_attend_on_the_gpu_is_near_float64(
    kind: str, size: int, dtype: torch.dtype, tolerance: float
) -> None:
    q, k, v = (x.to(dtype) for x in inputs(23, 29, value_size=size))
    deep = deep_weight(kind, size, dtype)
    lengths = torch.tensor([0, 17])
    exact_deep = None if deep is None else deep.double()
    exact = attend(
        q.double(), k.double(), v.double(), kind=kind, causal=True, lengths=lengths, deep=exact_deep
    )
    q, k, v = (x.cuda().requires_grad_() for x in (q, k, v))
    deep = None if deep is None else deep.cuda()
    given = attend(q, k, v, kind=kind, causal=True, lengths=lengths.cuda(), deep=deep)
    assert given[0].eq(0).all()
    assert relative_error(given.cpu(), exact) < tolerance
    for gradient in torch.autograd.grad(given.sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert gradient[0].eq(0).all()


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_causal_attention_with_a_scale_of_zero_or_below(kind: str, scale: float) -> None:
    q, k, v = (x.float() for x in inputs(67, 67))
    deep = deep_weight(kind, v.shape[-1], torch.float32)
    options = {"kind": kind, "causal": True, "scale": scale}
    exact_deep = None if deep is None else deep.double()
    exact = attend(q.double(), k.double(), v.double(), **options, deep=exact_deep)
    deep = None if deep is None else deep.cuda()
    given = attend(q.cuda(), k.cuda(), v.cuda(), **options, deep=deep).cpu()
    torch.testing.assert_close(given, exact.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_whose_gradient_is_summed_in_parts(compiled: bool) -> None:
    members, tokens, inputs_, outputs = 4, 128 * 36, 128, 64
    assert parts_of_sum(tokens, (members, outputs, inputs_)) == 32
    x = torch.randn(members, 128, 36, inputs_, device="cuda", requires_grad=True)
    weight = torch.randn(members, outputs, inputs_, device="cuda", requires_grad=True)
    bias = torch.randn(members, outputs, device="cuda", requires_grad=True)
    given = x, weight, bias
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    grad = torch.randn(members, 128, 36, outputs, device="cuda")
    function = torch.compile(linear, fullgraph=True) if compiled else linear
    ours = torch.autograd.grad(function(*given), given, grad)
    theirs = torch.autograd.grad(linear(*exact), exact, grad.double())
    for found, wanted in zip(ours, theirs, strict=True):
        assert relative_error(found.cpu(), wanted.cpu()) < 1e-5
    _, tangent = torch.func.jvp(lambda x: linear(x, weight, bias), (x,), (torch.ones_like(x),))
    assert relative_error(tangent.cpu(), linear(torch.ones_like(x), weight, None).cpu()) < 1e-5


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_compiled_population_on_the_gpu(kind: str) -> None:
    torch.compiler.reset()
    config = ModelConfig(
        input_size=5, output_size=2, layers=2, width=32, heads=8, head_size=4, kind=kind
    )
    models = [build(config, seed) for seed in range(3)]
    population = stack(models).cuda()
    x = torch.randn(3, 16, 36, 5)
    # Without the option, torch 2.11 with Triton 3.6 miscompiles the sum over the batch that is the
    # gradient of the relative bias of the kinds without a normaliser: off by its own size.
    options = {"comprehensive_padding": False}
    compiled = torch.compile(population, fullgraph=True, options=options)
    # Relative to the norm of all gradients: some are only rounding (biases of keys in a softmax).
    given = compiled(x.cuda())
    gradients = torch.autograd.grad(given.square().sum(), list(population.parameters()))
    for m, alone in enumerate(models):
        exact = alone.double()(x[m].double())
        assert relative_error(given[m].cpu(), exact) < 1e-5
        exact_gradients = torch.autograd.grad(exact.square().sum(), list(alone.parameters()))
        scale = sum(gradient.norm().square() for gradient in exact_gradients).sqrt()
        for ours, theirs in zip(gradients, exact_gradients, strict=True):
            assert (ours[m].cpu().double() - theirs).norm() / scale < 1e-5
