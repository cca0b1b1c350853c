"""The transformer, its configuration, initialisation, mixture of experts and latent codes."""

import json
from dataclasses import fields

import pytest
import torch
from helpers import ALL_KINDS

from hyla import (
    ModelConfig,
    Transformer,
    build,
    fuzzy_logic_model,
    language_model,
    sraven_model,
)
from hyla.layers import gelu
from hyla.model import MixtureOfExperts

SMALL = {
    "input_size": 5,
    "output_size": 2,
    "layers": 3,
    "width": 11,
    "heads": 3,
    "head_size": 2,
    "hidden_size": 13,
    "buckets": 7,
}


def test_the_papers_sizes() -> None:
    fuzzy, sraven, language = fuzzy_logic_model(), sraven_model(), language_model()
    assert (fuzzy.layers, fuzzy.heads * fuzzy.head_size, fuzzy.buckets) == (2, 16, 32)
    assert (sraven.layers, sraven.heads * sraven.head_size, sraven.buckets) == (4, 64, 36)
    assert (language.heads * language.head_size, language.tied, language.causal) == (
        512,
        True,
        True,
    )
    wide, thick = sraven_model(width_factor=4), sraven_model(width_factor=4, more_heads=False)
    assert (wide.width, wide.hidden_size, wide.heads, wide.head_size) == (512, 1024, 64, 4)
    assert (thick.width, thick.hidden_size, thick.heads, thick.head_size) == (512, 1024, 16, 16)


def test_parameter_count_by_hand() -> None:
    # SRAVEN: 4 layers of width 128 with 64 = 16 x 4 for queries, keys and values, hidden 256.
    attention = 3 * (128 * 64 + 64) + (64 * 128 + 128) + 16 * 36
    block = attention + 2 * 128 * 256 + 256 + 128 + 4 * 128
    total = (8 * 128 + 128) + 4 * block + 2 * 128 + (128 * 8 + 8)
    assert sum(p.numel() for p in Transformer(sraven_model()).parameters()) == total


def test_every_moe_row_of_the_table_is_expressible() -> None:
    for kind in ("softmax", "linear", "hyla"):
        model = Transformer(ModelConfig(**SMALL, kind=kind, feed_forward="moe"))
        assert isinstance(model.blocks[0].feed_forward, MixtureOfExperts)
        assert model(torch.randn(2, 7, 5)).shape == (2, 7, 2)


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_mixture_of_experts_is_the_papers_formula(top_k: int) -> None:
    moe = MixtureOfExperts(width=7, hidden_size=11, experts=5, top_k=top_k).double()
    x = torch.randn(3, 7, dtype=torch.float64)
    for token, y in zip(x, moe(x[None])[0], strict=True):
        logits = moe.gate.weight @ token
        chosen = logits.argsort(descending=True)[:top_k]
        gates = logits[chosen].exp() / logits[chosen].exp().sum()
        exact = sum(
            g * moe.up[i] @ gelu(moe.down[i] @ token) for g, i in zip(gates, chosen, strict=True)
        )
        torch.testing.assert_close(y, exact)


def test_of_experts_with_equal_gates_the_first_are_taken() -> None:
    moe = MixtureOfExperts(width=7, hidden_size=11, experts=5, top_k=2)
    assert moe.gates(torch.zeros(1, 1, 7)).tolist() == [[[0.5, 0.5, 0.0, 0.0, 0.0]]]
    assert moe.gates(torch.full((1, 1, 7), torch.nan)).isnan().all()


def test_experts_outside_the_top_k_get_no_gradient() -> None:
    moe = MixtureOfExperts(width=7, hidden_size=11, experts=5, top_k=2)
    x = torch.randn(1, 1, 7)
    moe(x).sum().backward()
    used = moe.gates(x).flatten() > 0
    assert used.sum() == 2
    assert (moe.down.grad.abs().sum(dim=(1, 2)) > 0).equal(used)


def test_a_seed_is_the_same_model_with_every_version_of_pytorch() -> None:
    model = build(sraven_model(), seed=0)
    weights = model.blocks[0].attention.query.weight[:2, :3]
    expected = torch.tensor(
        [[-0.0084324, -0.1660284, -0.0759659], [-0.1294427, 0.0017716, 0.1161143]]
    )
    assert torch.allclose(weights, expected, atol=1e-6)
    norm = (
        torch.stack([p.detach().double().square().sum() for p in model.parameters()]).sum().sqrt()
    )
    assert float(norm) == pytest.approx(64.57422121721243, rel=1e-6)


def test_initialisation_is_lecun_everywhere() -> None:
    config = ModelConfig(**(SMALL | {"width": 211, "hidden_size": 307, "input_size": 101}))
    model = build(config, seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all(), name
        elif "norm" in name:
            assert parameter.eq(1).all(), name
        elif parameter.numel() > 1000:
            assert abs(parameter.std() * parameter.shape[-1] ** 0.5 - 1) < 0.08, name
    assert model.norm.eps == 1e-6
    words = build(ModelConfig(**(SMALL | {"inputs": "vocabulary", "input_size": 1009})), seed=0)
    assert abs(words.embedding.weight.std() * 11**0.5 - 1) < 0.03


def test_build_is_a_function_of_its_seed() -> None:
    config = ModelConfig(**SMALL)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one, same, other = build(config, 3), build(config, 3), build(config, 4)
    assert torch.random.get_rng_state().equal(state)
    assert one.output.weight.equal(same.output.weight)
    assert not one.output.weight.equal(other.output.weight)


def test_the_block_is_pre_norm() -> None:
    model = build(ModelConfig(**SMALL), seed=0)
    block, x = model.blocks[0], torch.randn(2, 7, 11)
    z = x + block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), z + block.feed_forward(block.feed_forward_norm(z)))


def test_the_feed_forward_layer_is_gelu_and_the_activation_reaches_the_attention() -> None:
    model = build(ModelConfig(**SMALL, activation="tanh"), seed=0)
    mlp, x = model.blocks[0].feed_forward, torch.randn(2, 7, 11)
    hidden = x @ mlp.hidden.weight.T + mlp.hidden.bias
    inner = (2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)
    exact = (0.5 * hidden * (1 + inner.tanh())) @ mlp.output.weight.T + mlp.output.bias
    torch.testing.assert_close(mlp(x), exact)
    assert model.blocks[0].attention.activation == "tanh"


def test_tied_output_is_the_embedding() -> None:
    options = {"inputs": "vocabulary", "input_size": 17, "output_size": 17, "tied": True}
    model = build(ModelConfig(**(SMALL | options)), seed=0)
    assert model.output is None
    words = torch.randint(17, (2, 7))
    x = model.embedding(words)
    for block in model.blocks:
        x = block(x)
    torch.testing.assert_close(model(words), model.norm(x) @ model.embedding.weight.T)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_causal_model_is_causal(kind: str) -> None:
    model = build(ModelConfig(**SMALL, causal=True, kind=kind), seed=0).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[:, 3].sum(), x)
    reached = gradient.abs().sum(dim=(0, 2)) > 0
    assert reached.tolist() == [True] * 4 + [False] * 3


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("causal, positions", [(False, "t5"), (True, "rotary"), (True, "t5")])
def test_the_last_tokens_alone_are_the_last_of_all(kind: str, causal: bool, positions: str) -> None:
    config = ModelConfig(
        input_size=3, output_size=2, layers=2, width=12, heads=3, kind=kind, causal=causal,
        positions=positions, buckets=7,
    )  # fmt: skip
    model = build(config, seed=0).double()
    x, lengths = torch.randn(2, 11, 3, dtype=torch.float64), torch.tensor([11, 7])
    everything = model(x, lengths=lengths)
    for last in (1, 4, 11):
        torch.testing.assert_close(model(x, lengths=lengths, last=last), everything[:, -last:])
    for last in (0, 12):
        with pytest.raises(
            ValueError, match=f"last: expected .* from 1 to the 11 tokens, got {last}"
        ):
            model(x, last=last)


def test_lengths_would_hide_the_new_tokens_of_a_cache() -> None:
    model = Transformer(ModelConfig(**SMALL, causal=True))
    x = torch.randn(2, 5, model.config.input_size)
    with pytest.raises(ValueError, match="lengths: expected None with a cache"):
        model(x, lengths=torch.tensor([5, 3]), cache=model.new_cache(7))


def test_the_last_tokens_alone_with_a_cache() -> None:
    config = ModelConfig(input_size=3, output_size=2, width=12, heads=3, causal=True, layers=2)
    model = build(config, seed=0).double()
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    cache = model.new_cache(11)
    first = model(x[:, :5], cache=cache, last=2)
    second = model(x[:, 5:], cache=cache, last=3)
    torch.testing.assert_close(torch.cat((first, second), 1), model(x)[:, [3, 4, 8, 9, 10]])


def test_padding_behind_the_length_does_not_matter() -> None:
    model = build(ModelConfig(**SMALL), seed=0).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    padded = model(x, lengths=torch.tensor([4, 7]))
    torch.testing.assert_close(padded[0, :4], model(x[:1, :4])[0])
    torch.testing.assert_close(padded[1], model(x[1:])[0])


@pytest.mark.parametrize("kind", ["hyla", "softmax"])
def test_latent_codes_of_chosen_layers(kind: str) -> None:
    model = build(ModelConfig(**SMALL, kind=kind), seed=0)
    x = torch.randn(2, 7, 5)
    inputs: dict[int, torch.Tensor] = {}
    for index, block in enumerate(model.blocks):
        block.attention.register_forward_pre_hook(
            lambda _, arguments, index=index: inputs.update({index: arguments[0]})
        )
    model(x)
    every = {i: block.attention.codes(inputs[i]) for i, block in enumerate(model.blocks)}
    codes = model.latent_codes(x, layers=[-1, 0], queries=[-1], keys=[2, 6])
    assert sorted(codes) == [0, 2]
    for layer, code in codes.items():
        torch.testing.assert_close(code, every[layer][:, -1:, [2, 6]])
    assert sorted(model.latent_codes(x)) == [0, 1, 2]


def test_latent_codes_of_padded_sequences() -> None:
    model = build(ModelConfig(**SMALL), seed=0).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    padded = model.latent_codes(x, layers=[2], queries=[3], keys=[3], lengths=torch.tensor([4, 7]))
    exact = model.latent_codes(x[:1, :4], layers=[2], queries=[3], keys=[3])
    torch.testing.assert_close(padded[2][:1], exact[2])


def test_latent_codes_stop_at_the_last_chosen_layer() -> None:
    model = build(ModelConfig(**SMALL), seed=0)
    ran: list[int] = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, index=index: ran.append(index))
    model.latent_codes(torch.randn(2, 7, 5), layers=[1], queries=[-1], keys=[-1])
    assert ran == [0]


def test_config_json_both_ways() -> None:
    for config in (fuzzy_logic_model("softmax"), sraven_model(layers=8), language_model()):
        assert ModelConfig.from_json(config.to_json()) == config
    assert set(json.loads(sraven_model().to_json())) == {
        field.name for field in fields(ModelConfig)
    }


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "hila"}, "kind: unknown name 'hila'. Did you mean 'hyla'"),
        ({"layers": 0}, "layers: expected a whole number of at least 1, got 0"),
        ({"layers": "4"}, "layers: expected a value of type int, got '4'"),
        ({"layers": True}, "layers: expected a value of type int, got True"),
        ({"feed_forward": "mpl"}, "feed_forward: unknown name 'mpl'. Did you mean 'mlp'"),
        ({"positions": "t6"}, "positions: unknown name 't6'. Did you mean 't5'"),
        ({"inputs": "words"}, "inputs: unknown name 'words'"),
        (
            {"feed_forward": "moe", "experts": 2, "top_k": 3},
            "top_k: expected at most the number of experts, 2, got 3",
        ),
        ({"positions": "rotary", "head_size": 3}, "head_size: expected an even number"),
        ({"tied": True}, "tied: expected a vocabulary that is also the output"),
        ({"buckets": 1}, "buckets: expected a whole number of at least 2"),
    ],
)
def test_bad_configurations_name_the_field(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        ModelConfig(**(SMALL | options))


def test_an_unknown_field_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"ModelConfig: unknown name 'layer'\. Did you mean 'layers'"
    ):
        ModelConfig.from_dict({"input_size": 5, "output_size": 1, "layer": 4})
    with pytest.raises(
        ValueError, match=r"ModelConfig\.output_size: expected a value, got nothing"
    ):
        ModelConfig.from_json('{"input_size": 5}')
    with pytest.raises(ValueError, match="ModelConfig: expected a JSON object, got list"):
        ModelConfig.from_json("[]")


def test_bad_tokens_name_the_argument() -> None:
    model = build(ModelConfig(**SMALL), seed=0)
    with pytest.raises(ValueError, match=r"tokens: expected \[batch, tokens, 5\], got \[2, 7, 3\]"):
        model(torch.randn(2, 7, 3))
    with pytest.raises(ValueError, match="cache: expected a causal model"):
        model.new_cache(7)
    with pytest.raises(ValueError, match="layers: expected a list of whole numbers from -3 to 2"):
        model.latent_codes(torch.randn(2, 7, 5), layers=[3])
    words = build(ModelConfig(**(SMALL | {"inputs": "vocabulary", "causal": True})), seed=0)
    with pytest.raises(ValueError, match=r"tokens: expected whole numbers \[batch, tokens\]"):
        words(torch.randn(2, 7))
    with pytest.raises(
        ValueError, match="cache: expected 3 different ones, as new_cache makes them, got 1"
    ):
        words(torch.ones(2, 7, dtype=torch.int64), cache=words.new_cache(7)[:1])


@pytest.mark.parametrize("inputs", ["continuous", "vocabulary"])
def test_the_residual_stream_is_not_rounded_in_mixed_precision(inputs: str) -> None:
    model = build(ModelConfig(**SMALL, inputs=inputs), seed=0)
    tokens = torch.randn(2, 7, 5) if inputs == "continuous" else torch.randint(5, (2, 7))
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, result: seen.append(result.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens)
    model.bfloat16()(tokens.bfloat16() if inputs == "continuous" else tokens)
    assert seen == [torch.float32] * 3 + [torch.bfloat16] * 3


def test_tokens_of_16_bits_under_autocast_and_shapes_alone() -> None:
    model, tokens = build(ModelConfig(**SMALL), seed=0), torch.randn(2, 7, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(tokens).isfinite().all()
    shapes = build(ModelConfig(**SMALL), seed=0).to("meta")
    assert shapes(tokens.float().to("meta")).shape == model(tokens.float()).shape


def test_heads_share_the_size_of_all_together() -> None:
    model = sraven_model("hyla")
    one = model.with_heads(1)
    assert (one.heads, one.head_size) == (1, 64)
    assert one.with_heads(16) == model
    with pytest.raises(ValueError, match="heads: expected a divisor of 64"):
        model.with_heads(7)
