"""Section 2 of the paper: every layer is a sum over keys of generated value networks."""

import pytest
import torch
from helpers import ALL_KINDS
from torch import nn

from hyla import MultiHeadAttention, stack, value_networks

WIDTH, HEADS, SIZE, TOKENS = 13, 5, 3, 7


def make(kind: str, heads: int = HEADS, **options: object) -> MultiHeadAttention:
    settings = {"positions": "t5", "buckets": 5, "dtype": torch.float64} | options
    layer = MultiHeadAttention(WIDTH, heads, head_size=SIZE, kind=kind, **settings)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def tokens(*lead: int) -> torch.Tensor:
    return torch.randn(*(lead or (2,)), TOKENS, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_layer_is_the_sum_of_its_value_networks(kind: str, bias: bool, causal: bool) -> None:
    layer, x = make(kind, bias=bias, causal=causal), tokens()
    y = value_networks(layer, x)(x).sum(dim=-2)
    y = y + layer.output.bias if bias else y
    torch.testing.assert_close(y, layer(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["softmax", "linear", "linear+rms_head"])
def test_equation_hya_main(kind: str) -> None:
    """W_qk = sum_h a_hqk W^out_h W^value_h, summed over keys, is multi-head attention."""
    layer, x = make(kind, bias=False), tokens()
    codes = layer.codes(x)
    w_value = layer.value.weight.view(HEADS, SIZE, WIDTH)
    w_out = layer.output.weight.view(WIDTH, HEADS, SIZE)
    w_qk = torch.zeros(2, TOKENS, TOKENS, WIDTH, WIDTH, dtype=torch.float64)
    for h in range(HEADS):
        w_qk += codes[..., h, None, None] * (w_out[:, h] @ w_value[h])
    torch.testing.assert_close(value_networks(layer, x).weights[0], w_qk)
    torch.testing.assert_close(torch.einsum("bqkoe,bke->bqo", w_qk, x), layer(x))


def test_hyla_equation() -> None:
    """W_qk and W'_qk are the code's combination of the value and the output matrices."""
    layer, x = make("hyla"), tokens()
    codes, (w, w_prime) = layer.codes(x), value_networks(layer, x).weights
    q, k = 4, 2
    w_value = layer.value.weight.view(HEADS, SIZE, WIDTH)
    w_out = layer.output.weight.view(WIDTH, HEADS, SIZE)
    expected = sum(codes[1, q, k, h] * w_value[h] for h in range(HEADS))
    expected_prime = sum(codes[1, q, k, h] * w_out[:, h] for h in range(HEADS))
    torch.testing.assert_close(w[1, q, k], expected)
    torch.testing.assert_close(w_prime[1, q, k], expected_prime)


def test_chosen_pairs_only() -> None:
    layer, x = make("hyla+deep"), tokens()
    every, chosen = value_networks(layer, x), value_networks(layer, x, queries=[-1], keys=[0, 3])
    for all_pairs, some in zip(every.weights, chosen.weights, strict=True):
        torch.testing.assert_close(some, all_pairs[:, -1:, [0, 3]])


@pytest.mark.parametrize("kind", ["softmax", "linear", "linear+rms_head"])
def test_a_single_head_only_rescales_one_matrix(kind: str) -> None:
    layer, x = make(kind, heads=1), tokens()
    weights = value_networks(layer, x).weights[0].flatten(0, -3).flatten(1)
    singular = torch.linalg.svdvals(weights)
    assert singular[1] < 1e-10 * singular[0]
    many = value_networks(make(kind), x).weights[0].flatten(0, -3).flatten(1)
    assert torch.linalg.matrix_rank(many) == HEADS


def test_a_single_head_of_hyla_has_only_a_sign_for_its_code() -> None:
    layer, x = make("hyla", heads=1), 100 * tokens()  # no score so small that epsilon shows
    codes = layer.codes(x)
    torch.testing.assert_close(codes.abs(), torch.ones_like(codes), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_value_networks_of_a_population(kind: str) -> None:
    members, x = [make(kind) for _ in range(3)], tokens(3, 2)
    together = value_networks(stack(members), x)
    for index, layer in enumerate(members):
        alone = value_networks(layer, x[index])
        for w, w_alone in zip(together.weights, alone.weights, strict=True):
            torch.testing.assert_close(w[index], w_alone)
        torch.testing.assert_close(together(x)[index], alone(x[index]))


def test_value_networks_in_bfloat16_and_under_lengths() -> None:
    layer, x = make("hyla", dtype=torch.bfloat16), tokens().bfloat16()
    assert value_networks(layer, x).weights[0].dtype == torch.bfloat16
    layer, x, lengths = make("hyla"), tokens(), torch.tensor([3, 7])
    y = value_networks(layer, x, lengths=lengths)(x).sum(dim=-2) + layer.output.bias
    torch.testing.assert_close(y, layer(x, lengths=lengths))


def test_the_networks_refuse_the_tokens_of_other_keys() -> None:
    layer, x = make("hyla"), tokens()
    networks = value_networks(layer, x, keys=[0, 3])
    with pytest.raises(ValueError, match="x: expected the tokens of the 2 chosen keys"):
        networks(x)


def test_cross_attention_has_value_networks_too() -> None:
    layer = make("hyla", context_width=11)
    x, context = tokens(), torch.randn(2, 17, 11, dtype=torch.float64)
    y = value_networks(layer, x, context)(context).sum(dim=-2) + layer.output.bias
    torch.testing.assert_close(y, layer(x, context))
