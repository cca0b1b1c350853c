"""Linear layers and AdamW in C++: against float64, alone and within models."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hyla import MultiHeadAttention, native, products
from hyla.layers import Linear, linear
from hyla.model import FeedForward
from hyla.products import GELU, HALF

pytestmark = pytest.mark.skipif(
    native.load("products") is None, reason="needs a C++ compiler for the CPU kernels"
)
SIZES = [(1, 1, 1), (7, 1, 5), (131, 37, 53), (600, 128, 64), (1031, 17, 129), (300, 300, 301)]
OPTIONS = {"fp32": 0, "bf16": HALF, "gelu": GELU, "gelu bf16": HALF | GELU}


def rounded(x: Tensor, options: int) -> Tensor:
    return x.bfloat16().double() if options & HALF else x.double()


def exact(
    x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, options: int
) -> tuple[Tensor, ...]:
    """The output and the gradients of x, W and b, where factors are rounded as the option says."""
    point = x.double().requires_grad_()
    active = F.gelu(point, approximate="tanh") if options & GELU else point * 1.0
    left, right, g = (rounded(one.detach().float(), options) for one in (active, weight, grad))
    (dx,) = torch.autograd.grad(active, point, g @ right)
    return left @ right.T + bias.double(), dx, g.T @ left, grad.double().sum(0)


def problem(rows: int, inputs: int, outputs: int) -> tuple[Tensor, ...]:
    torch.manual_seed(rows + inputs + outputs)
    shapes = (rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_output_and_gradients(sizes: tuple[int, int, int], options: int, threads: int) -> None:
    x, weight, bias, grad = problem(*sizes)
    y = products.operator(x, weight, bias, options)
    found = y, *products.linear_backward(grad, x, weight, options, True, True)
    # gelu(x) may be rounded to either neighbour if it lies halfway between them.
    tolerance = 2e-3 if options == HALF | GELU else 1e-6
    for one, expected in zip(found, exact(x, weight, bias, grad, options), strict=True):
        assert (one - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sizes", [(1031, 17, 129), (300, 300, 301)])
def test_nothing_depends_on_the_number_of_threads(
    sizes: tuple[int, int, int], options: int
) -> None:
    x, weight, bias, grad = problem(*sizes)
    before, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        y = products.operator(x, weight, bias, options)
        found.append((y, *products.linear_backward(grad, x, weight, options, True, True)))
    torch.set_num_threads(before)
    for others in found[1:]:
        assert all(a.equal(b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_operator_is_registered_as_pytorch_wants_it(options: int) -> None:
    x, weight, bias, _ = (one.requires_grad_() for one in problem(5, 3, 7))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(products.operator, (x, weight, bias, options), test_utils=tests)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "x, weight, bias",
    [
        (torch.ones(200, 300), torch.ones(64, 512), None),
        (torch.ones(200, 300), torch.ones(64, 300), torch.ones(63)),
        (torch.ones(200, 300), torch.ones(64, 300), torch.ones(64, dtype=torch.float64)),
    ],
)
def test_what_does_not_fit_is_an_error(
    x: Tensor, weight: Tensor, bias: Tensor | None, half: bool
) -> None:
    with products.in_bf16(half), pytest.raises((RuntimeError, ValueError)):
        linear(x, weight, bias)
    with pytest.raises(ValueError, match="hyla::linear: expected"):
        products.operator(x, weight, bias, 0)


def test_what_pytorch_takes_and_products_do_not() -> None:
    x, weight = torch.randn(512), torch.randn(512, 512)
    broadcast, many = torch.randn(1), torch.randn(600, 512)
    with products.in_bf16():
        torch.testing.assert_close(linear(x, weight, None), F.linear(x, weight))
        expected = F.linear(many, weight, broadcast)
        torch.testing.assert_close(linear(many, weight, broadcast), expected)
        weight.requires_grad_()
        (empty,) = torch.autograd.grad(linear(many[:0], weight, None).sum(), weight)
    assert empty.eq(0).all()


@pytest.mark.parametrize("options", [0, GELU])
def test_third_derivatives(options: int) -> None:
    torch.manual_seed(3)
    points = torch.randn(130, 40), torch.randn(60, 40) / 6

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(F.gelu(x, approximate="tanh") if options else x, weight)

    def third(product: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.requires_grad_(), weight.requires_grad_()
        y = product(x, weight)
        (dx,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        (dweight,) = torch.autograd.grad(dx.square().sum(), weight, create_graph=True)
        return torch.autograd.grad(dweight.square().sum(), x)[0]

    found = third(lambda x, weight: products.operator(x, weight, None, options), *points)
    expected = third(plain, *(one.detach().double() for one in points))
    assert (found - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("options", [0, GELU])
def test_second_derivatives(options: int) -> None:
    x, weight, bias, _ = problem(5, 3, 7)

    def norms(product: object, points: list[Tensor]) -> tuple[Tensor, ...]:
        assert callable(product)
        first = torch.autograd.grad(product(*points).sin().sum(), points, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), points)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.gelu(x, approximate="tanh") if options & GELU else x, weight, bias)

    points = [one.requires_grad_() for one in (x, weight, bias)]
    doubles = [one.detach().double().requires_grad_() for one in points]
    found = norms(lambda *inputs: products.operator(*inputs, options), points)
    for one, expected in zip(found, norms(plain, doubles), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_nan_stays_in_its_row(options: int) -> None:
    x, weight, bias, _ = problem(131, 37, 53)
    x[13, 5], x[130, 36] = torch.nan, torch.inf
    finite = products.operator(x, weight, bias, options).isfinite()
    assert finite.all(dim=1).logical_not().nonzero().flatten().tolist() == [13, 130]


def test_bf16_is_chosen_by_a_block_and_its_gradients_keep_it() -> None:
    x, weight, bias, grad = problem(7, 5, 3)
    x.requires_grad_()
    plain = linear(x, weight, bias)
    with products.in_bf16():
        half = linear(x, weight, bias)
        assert products.is_available() == (not half.equal(plain))
    if products.is_available():
        (dx,) = torch.autograd.grad(half, x, grad)
        expected = exact(x.detach(), weight, bias, grad, HALF)[1]
        torch.testing.assert_close(dx.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not products.is_available(), reason="PyTorch's products are faster here")
def test_hooks_of_layers_are_called() -> None:
    torch.manual_seed(0)
    attention, seen = MultiHeadAttention(width=48, heads=6), list[str]()
    feed_forward, x = FeedForward(48, 96), torch.randn(40, 31, 48)
    expected = attention(x), feed_forward(x)
    for name, layer in (*attention.named_modules(), *feed_forward.named_modules()):
        if isinstance(layer, Linear):
            layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    found = attention(x), feed_forward(x)
    torch.testing.assert_close(found, expected)
    assert sorted(seen) == sorted(["query", "key", "value", "output", "hidden", "output"])


@pytest.mark.skipif(not products.is_available(), reason="PyTorch's products are faster here")
def test_a_replaced_forward_is_called() -> None:
    torch.manual_seed(0)
    x, seen = torch.randn(40, 31, 48), list[str]()
    attention, feed_forward = MultiHeadAttention(48, 6), FeedForward(48, 96)
    for layer in (attention.key, feed_forward.output):
        before = layer.forward
        layer.forward = lambda x, before=before: seen.append("replaced") or before(x)
    attention(x)
    feed_forward(x)
    assert seen == ["replaced"] * 2
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    MultiHeadAttention(48, 6)(x)
    handle.remove()
    assert seen.count("Linear") == 4


@pytest.mark.parametrize("without", ["query", "key", "value"])
def test_a_projection_may_have_no_bias_alone(without: str) -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(48, 6), torch.randn(40, 31, 48)
    for name in ("query", "key", "value"):
        torch.nn.init.normal_(getattr(layer, name).bias)
    setattr(layer, without, Linear(48, 48, bias=False))
    with native.using("products", None):
        expected = layer(x[:1])
    torch.testing.assert_close(layer(x)[:1], expected, rtol=1e-3, atol=1e-3)


def test_a_compiled_layer_does_the_same() -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(48, 96), torch.randn(40, 31, 48)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))
    with products.in_bf16():
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))
