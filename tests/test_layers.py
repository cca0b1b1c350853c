"""The population axis: member m of a stacked module computes what it computes alone."""

from collections.abc import Callable

import pytest
import torch
from helpers import ALL_KINDS
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from hyla import ModelConfig, MultiHeadAttention, Transformer, build, member, stack
from hyla.layers import Embedding, LayerNorm, Linear, Product, parts_of_sum

MEMBERS, BATCH, TOKENS = 3, 2, 7


def population(**options: object) -> list[Transformer]:
    settings = {"layers": 2, "width": 11, "heads": 3, "head_size": 2, "hidden_size": 13}
    config = ModelConfig(**({"input_size": 5, "output_size": 2, "buckets": 7} | settings | options))
    models = [build(config, seed).double() for seed in range(MEMBERS)]
    for model in models:
        for parameter in model.parameters():  # biases and norms at 0 and 1 would hide mistakes
            parameter.data += 0.1 * torch.randn_like(parameter)
    return models


def gradients(model: Transformer, x: Tensor) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    # Each member has a loss of its own; their sum keeps the gradients apart.
    found = torch.autograd.grad(model(x).square().sum(), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


@pytest.mark.parametrize("feed_forward", ["mlp", "moe"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_each_member_computes_what_it_computes_alone(kind: str, feed_forward: str) -> None:
    """Outputs and the gradients of every parameter, in float64, to rounding."""
    models = population(kind=kind, feed_forward=feed_forward)
    x = torch.randn(MEMBERS, BATCH, TOKENS, 5, dtype=torch.float64)
    stacked = stack(models)
    together, its_gradients = stacked(x), gradients(stacked, x)
    for m, alone in enumerate(models):
        torch.testing.assert_close(together[m], alone(x[m]), rtol=1e-11, atol=1e-11)
        for name, gradient in gradients(alone, x[m]).items():
            torch.testing.assert_close(its_gradients[name][m], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_population_axis_is_vmap_over_members(kind: str) -> None:
    models = population(kind=kind)
    x = torch.randn(MEMBERS, BATCH, TOKENS, 5, dtype=torch.float64)
    parameters, buffers = stack_module_state(models)
    one_buffer = {name: buffer[0] for name, buffer in buffers.items()}
    exact = vmap(lambda p, x: functional_call(models[0], (p, one_buffer), (x,)))(parameters, x)
    torch.testing.assert_close(stack(models)(x), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("positions", ["none", "t5", "rotary"])
def test_an_ensemble_by_vmap_has_the_gradients_of_a_population(positions: str) -> None:
    models = population(positions=positions, head_size=4)
    x = torch.randn(MEMBERS, BATCH, TOKENS, 5, dtype=torch.float64)
    parameters, buffers = stack_module_state(models)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(models[0], (p, b), (x,)).square().sum()

    found = vmap(grad(loss))(parameters, buffers, x)
    for name, gradient in gradients(stack(models), x).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_weights_whose_gradient_is_summed_in_parts(parts: int) -> None:
    """As a product without parts: result, gradients and theirs, compiled, and under vmap."""
    x, weight = torch.randn(2, 21, 5).double(), torch.randn(2, 3, 5).double()
    tensors = x.requires_grad_(), weight.requires_grad_()

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return Product.apply(x, weight, parts)

    def twice(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(function(*tensors).sin().sum(), tensors, create_graph=True)
        return *first, *torch.autograd.grad(sum(g.cos().sum() for g in first), tensors)

    exact = twice(lambda x, weight: x @ weight.mT)
    for found, expected in zip(twice(product), exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(*tensors).sin().sum(), tensors)
    torch.testing.assert_close(found, exact[:2], rtol=1e-12, atol=1e-12)
    stacked = vmap(product)(x.expand(3, -1, -1, -1), weight.expand(3, -1, -1, -1))
    torch.testing.assert_close(stacked[2], x @ weight.mT)


def test_parts_divide_the_tokens_and_fill_a_gpu() -> None:
    """4 members of the paper's SRAVEN, all tokens and the last 4; then sizes that need no parts."""
    assert parts_of_sum(128 * 36, (4, 64, 128)) == 32
    assert parts_of_sum(128 * 36, (4, 256, 128)) == 8
    assert parts_of_sum(128 * 4, (4, 64, 128)) == 4
    assert parts_of_sum(128 * 37 + 1, (4, 64, 128)) == 1
    assert parts_of_sum(100, (4, 64, 128)) == parts_of_sum(128 * 36, (64, 512, 512)) == 1
    assert parts_of_sum(0, (4, 64, 128)) == 1


def test_a_product_in_parts_compiles_for_any_number_of_tokens() -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return Product.apply(x, weight, parts_of_sum(x.shape[1], weight.shape))

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True, dynamic=True)
    weight = torch.randn(2, 3, 5, requires_grad=True)
    for tokens in (512, 7 * 128, 36 * 128):
        x = torch.randn(2, tokens, 5)
        (found,) = torch.autograd.grad(compiled(x, weight).square().sum(), weight)
        (exact,) = torch.autograd.grad((x @ weight.mT).square().sum(), weight)
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)


def test_members_do_not_touch_each_other() -> None:
    stacked = stack(population())
    x = torch.randn(MEMBERS, BATCH, TOKENS, 5, dtype=torch.float64)
    before = stacked(x)[0].detach()
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter[1:] = torch.nan
    assert stacked(x)[0].equal(before)


@pytest.mark.parametrize("tied", [True, False])
def test_a_population_over_a_vocabulary_decodes_with_a_cache(tied: bool) -> None:
    models = population(
        inputs="vocabulary",
        input_size=17,
        output_size=17,
        tied=tied,
        causal=True,
        positions="rotary",
    )
    words = torch.randint(17, (MEMBERS, BATCH, TOKENS))
    stacked = stack(models)
    full, cache = stacked(words), stacked.new_cache(7)
    steps = [stacked(words[..., i : i + 1], cache=cache) for i in range(TOKENS)]
    torch.testing.assert_close(torch.cat(steps, dim=-2), full, rtol=1e-10, atol=1e-11)
    for m, alone in enumerate(models):
        torch.testing.assert_close(full[m], alone(words[m]), rtol=1e-11, atol=1e-11)


def test_latent_codes_of_a_population() -> None:
    models = population()
    x = torch.randn(MEMBERS, BATCH, TOKENS, 5, dtype=torch.float64)
    codes = stack(models).latent_codes(x, layers=[1], queries=[-1], keys=[-1])
    for m, alone in enumerate(models):
        exact = alone.latent_codes(x[m], layers=[1], queries=[-1], keys=[-1])[1]
        torch.testing.assert_close(codes[1][m], exact)


def test_a_member_comes_back_as_it_went_in() -> None:
    models = population()
    alone = member(stack(models), 1)
    for name, parameter in models[1].named_parameters():
        assert alone.get_parameter(name).equal(parameter)
    with torch.no_grad():
        alone.norm.weight.zero_()
    assert models[1].norm.weight.ne(0).all()


class Twice(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.first, self.second = Linear(5, 5), Linear(5, 5)
        if shared:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_shared_parameters_stay_shared() -> None:
    models, x = [Twice(shared=True).double() for _ in range(MEMBERS)], torch.randn(MEMBERS, 7, 5)
    population = stack(models)
    assert population.second.weight is population.first.weight
    exact = torch.stack([model(x) for model, x in zip(models, x.double(), strict=True)])
    torch.testing.assert_close(population(x.double()), exact)
    alone = member(population, 1)
    assert alone.second.weight is alone.first.weight
    torch.testing.assert_close(alone(x[1].double()), exact[1])
    with pytest.raises(ValueError, match=r"members: expected .*second\.weight"):
        stack([Twice(shared=True), Twice(shared=False)])


def test_frozen_parameters_stay_frozen() -> None:
    models = population()
    for model in models:
        model.embedding.requires_grad_(False)
    stacked = stack(models)
    assert not stacked.embedding.weight.requires_grad
    assert not member(stacked, 0).embedding.weight.requires_grad
    assert stacked.norm.weight.requires_grad


def test_a_word_outside_the_vocabulary_is_not_another_members() -> None:
    stacked = stack([Embedding(11, 3), Embedding(11, 3)])
    with pytest.raises(IndexError):
        stacked(torch.full((2, 1, 5), 11))


def test_a_forgotten_population_axis_is_refused() -> None:
    stacked = stack(population(positions="none"))
    with pytest.raises(ValueError, match=r"tokens: expected \[member, batch, tokens, 5\]"):
        stacked(torch.randn(MEMBERS, TOKENS, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x: expected \[member, batch, tokens, 11\]"):
        stacked.blocks[0].attention(torch.randn(MEMBERS, TOKENS, 11, dtype=torch.float64))


def test_stack_and_stacked_layers_refuse_what_does_not_fit() -> None:
    for others in ([Linear(3, 7)], [Linear(3, 5, bias=False)], [Linear(3, 5), LayerNorm(3)]):
        for members in ([Linear(3, 5), *others], [*others, Linear(3, 5)]):
            with pytest.raises(ValueError, match="members: expected "):
                stack(members)
    for options in (
        {"kind": "linear"},
        {"layers": 1},
        {"causal": True},
        {"activation": "gelu"},
        {"positions": "none"},
        {"buckets": 8},
    ):
        with pytest.raises(ValueError, match=r"members: expected .* in member 0, .* in 1\."):
            stack([population()[0], population(**options)[0]])
    with pytest.raises(ValueError, match="members: expected at least one module"):
        stack([])
    for layer, x in (
        (Linear(3, 5), torch.randn(4, 7, 3)),
        (Linear(3, 5), torch.randn(2, 3)),
        (LayerNorm(3), torch.randn(4, 7, 3)),
        (Embedding(11, 3), torch.randint(11, (4, 7, 2))),
    ):
        with pytest.raises(ValueError, match=r"input: expected \[member, batch, ...\] with 2"):
            stack([layer, layer])(x)


def test_words_that_there_are_not_are_refused_in_a_population_too() -> None:
    alone = [Embedding(7, 4) for _ in range(2)]
    population, tokens = stack(alone), torch.randint(7, (2, 3, 5))
    expected = torch.stack([one(t) for one, t in zip(alone, tokens, strict=True)])
    assert torch.equal(population(tokens), expected)
    for odd in (-1, 7):
        with pytest.raises(IndexError):
            population(tokens.clone().index_fill_(2, torch.tensor([1]), odd))


def test_a_member_of_what_is_not_a_population_is_refused() -> None:
    config = ModelConfig(input_size=3, output_size=2, layers=1, width=8, heads=2, hidden_size=12)
    one = build(config, seed=0)
    alike = MultiHeadAttention(8, 2)  # all of its parameters have a first axis of 8
    for alone in (one, alike, Linear(5, 5), LayerNorm(7), Embedding(7, 3), nn.Sequential(alike)):
        with pytest.raises(ValueError, match="population: expected "):
            member(alone, 0)
    population = stack([one, build(config, seed=1)])
    with pytest.raises(ValueError, match=r"index: expected .*got 2"):
        member(population, 2)
