"""The layer: against PyTorch's, decoding with a cache, cross-attention, codes on request."""

import pytest
import torch
from helpers import ALL_KINDS, relative_error
from torch import nn

from hyla import KINDS, KeyValueCache, ModelConfig, MultiHeadAttention, Transformer, attend
from hyla.attention.positions import rotate, t5_buckets

WIDTH, HEADS, SIZE, TOKENS, BATCH = 19, 3, 2, 7, 2


def make(kind: str = "hyla", **options: object) -> MultiHeadAttention:
    settings = {"head_size": SIZE, "dtype": torch.float64} | options
    layer = MultiHeadAttention(WIDTH, HEADS, kind=kind, **settings)
    for parameter in layer.parameters():  # biases start at 0, which would hide their mistakes
        nn.init.normal_(parameter, std=0.5)
    return layer


def tokens(count: int = TOKENS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(BATCH, count, width, dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_layer_is_torch_multihead_attention(causal: bool) -> None:
    width = 15
    layer = MultiHeadAttention(width, 5, kind="softmax", causal=causal, dtype=torch.float64)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.MultiheadAttention(width, 5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        ours = (layer.query, layer.key, layer.value)
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in ours]))
        theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in ours]))
        theirs.out_proj.weight.copy_(layer.output.weight)
        theirs.out_proj.bias.copy_(layer.output.bias)
    x = tokens(width=width)
    hidden = ~torch.ones(TOKENS, TOKENS).tril().bool() if causal else None
    exact, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    torch.testing.assert_close(layer(x), exact)
    # Masks of PyTorch's layer as ours: masked keys of a sequence, and additive scores.
    padding = torch.arange(TOKENS) >= torch.tensor([[TOKENS], [4]])
    terms = torch.randn(TOKENS, TOKENS).double()
    terms = terms if hidden is None else terms.masked_fill(hidden, -torch.inf)
    added = torch.zeros(BATCH, TOKENS).double().masked_fill(padding, -torch.inf)
    exact, weights = theirs(
        x, x, x, attn_mask=terms, key_padding_mask=added, average_attn_weights=False
    )
    for options in ({"mask": ~padding[:, None, None, :]}, {"lengths": torch.tensor([TOKENS, 4])}):
        torch.testing.assert_close(layer(x, bias=terms, **options), exact)
        codes = layer.codes(x, bias=terms, **options)
        torch.testing.assert_close(codes.movedim(-1, 1), weights)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("positions", ["none", "t5", "rotary"])
def test_cached_decoding_equals_the_full_pass(kind: str, positions: str) -> None:
    layer = make(kind, causal=True, positions=positions, buckets=5)
    x = tokens()
    full, cache = layer(x), KeyValueCache(max_tokens=TOKENS)
    steps = [layer(x[:, :3], cache=cache)] + [layer(x[:, i : i + 1], cache=cache) for i in (3, 4)]
    steps.append(layer(x[:, 5:], cache=cache))
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=1e-10, atol=1e-12)
    assert cache.tokens == TOKENS


def test_cache_takes_a_mask_over_all_keys() -> None:
    layer = make(causal=True)
    x, cache = tokens(), KeyValueCache(TOKENS)
    mask = torch.arange(TOKENS) != 1
    layer(x[:, :-1], cache=cache)
    last = layer(x[:, -1:], cache=cache, mask=mask)
    torch.testing.assert_close(last, layer(x, mask=mask)[:, -1:])


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_cross_attention_over_a_context_of_another_width_and_length(kind: str) -> None:
    layer = make(kind, context_width=11, positions="t5")
    x, context = tokens(), tokens(13, width=11)
    out = layer(x, context, lengths=torch.tensor([5, 13]))
    assert out.shape == x.shape
    torch.testing.assert_close(out[:1], layer(x[:1], context[:1, :5]))


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", ["t5", "rotary"])
def test_chosen_codes_are_those_of_all_pairs(kind: str, causal: bool, positions: str) -> None:
    layer = make(kind, causal=causal, positions=positions, buckets=5)
    x = tokens()
    every = layer.codes(x)
    assert every.shape == (BATCH, TOKENS, TOKENS, HEADS)
    chosen = layer.codes(x, queries=[-1, 2], keys=torch.tensor([0, 5, -1]))
    torch.testing.assert_close(chosen, every[:, [6, 2]][:, :, [0, 5, 6]])


@pytest.mark.parametrize("kind", ["hyla", "softmax"])
def test_codes_compute_only_what_was_asked(kind: str) -> None:
    """Tokens that are neither asked for nor normalised over may hold anything."""
    layer = make(kind)
    x = tokens()
    x[:, 2] = torch.nan
    code = layer.codes(x, queries=[1], keys=[6])
    assert code.isnan().all() == (KINDS[kind].normaliser == "softmax")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("positions", ["none", "t5", "rotary"])
@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
def test_any_dtype(dtype: torch.dtype, positions: str, kind: str) -> None:
    layer = make(kind, positions=positions)
    low = make(kind, positions=positions, dtype=dtype)
    low.load_state_dict(layer.state_dict())
    layer.load_state_dict(low.state_dict())
    x = tokens().to(dtype)
    given = low(x)
    assert given.dtype == dtype
    # A layer rounds about ten times; the unit of float16 is 5e-4, of bfloat16 4e-3.
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}[dtype]
    assert relative_error(given, layer(x.double())) < tolerance


@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
def test_autocast(kind: str) -> None:
    layer = make(kind, positions="t5", dtype=torch.float32)
    x = tokens().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = layer(x)
    assert given.dtype == torch.bfloat16
    assert relative_error(given, layer(x)) < 4e-2


def test_initialisation() -> None:
    layer = MultiHeadAttention(499, 11, head_size=31, kind="hyla+deep")
    for projection in (layer.query, layer.key, layer.value, layer.output):
        fan_in = projection.weight.shape[1]
        assert abs(projection.weight.std() * fan_in**0.5 - 1) < 0.01
        assert projection.weight.abs().max() <= 2 / fan_in**0.5 / 0.8796 + 1e-6
        assert projection.bias.eq(0).all()
    assert abs(layer.deep.std() * 31**0.5 - 1) < 0.03


def test_without_biases() -> None:
    names = [name for name, _ in make(bias=False).named_parameters()]
    assert names == ["query.weight", "key.weight", "value.weight", "output.weight"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"width": 20, "heads": 3}, "heads: expected a divisor of width = 20"),
        ({"width": 20, "heads": 0}, "width, heads: expected whole numbers"),
        ({"width": 6, "heads": 2, "positions": "rotary"}, "head_size: expected an even"),
        ({"width": 6, "heads": 2, "positions": "rotari"}, "Did you mean 'rotary'"),
        ({"width": 6, "heads": 2, "kind": "sofmax"}, "Did you mean 'softmax'"),
        ({"width": 6, "heads": 2, "eps": -1.0}, "eps: expected a finite number"),
        ({"width": 6, "heads": 2, "rotary_base": -1.0}, "rotary_base: expected a finite number"),
        ({"width": 6, "heads": 2, "causal": True, "context_width": 5}, "causal: expected False"),
    ],
)
def test_bad_settings_name_the_argument(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**options)


def test_bad_input_names_the_argument() -> None:
    layer, crossed = make(), make(context_width=11)
    with pytest.raises(ValueError, match="cache: expected a causal layer"):
        layer(tokens(), cache=KeyValueCache(9))
    with pytest.raises(ValueError, match=r"x: expected \[batch, tokens, 19\], got \[2, 7, 5\]"):
        layer(tokens(width=5))
    with pytest.raises(ValueError, match=r"context: expected None .*context_width"):
        layer(tokens(), tokens())
    with pytest.raises(ValueError, match=r"context: expected \[batch, tokens, 11\], got None"):
        crossed(tokens())
    with pytest.raises(
        ValueError, match=r"keys: expected a list of whole numbers from -7 to 6, got \[7\]"
    ):
        layer.codes(tokens(), keys=[7])
    for bad in (-1, [1.5], torch.tensor([True, False])):
        with pytest.raises(ValueError, match="queries: expected a list of whole numbers"):
            layer.codes(tokens(), queries=bad)
    causal, cache = make(causal=True), KeyValueCache(8)
    causal(tokens(), cache=cache)
    with pytest.raises(ValueError, match="max_tokens: expected a cache for at least 9 tokens"):
        causal(tokens(2), cache=cache)
    with pytest.raises(ValueError, match=r"cache: expected keys as in the earlier steps"):
        causal(tokens(1)[:1], cache=cache)
    with pytest.raises(ValueError, match=r"mask: expected a boolean"):
        causal(tokens(1), cache=cache, mask=torch.ones(8))
    assert cache.tokens == TOKENS  # a refused step leaves the cache as it was


def test_gradients_of_cached_steps_reach_the_current_step() -> None:
    layer, x = make(causal=True), tokens()
    cache = KeyValueCache(TOKENS)
    layer(x[:, :4], cache=cache)
    parameters = list(layer.parameters())
    given = torch.autograd.grad(layer(x[:, 4:], cache=cache).sum(), parameters)
    constant = (projection(x[:, :4]).detach() for projection in (layer.key, layer.value))
    k, v = (past.unflatten(-1, (HEADS, SIZE)) for past in constant)
    q, k_now, v_now = (
        projection(x[:, 4:]).unflatten(-1, (HEADS, SIZE))
        for projection in (layer.query, layer.key, layer.value)
    )
    k, v = torch.cat((k, k_now), dim=1), torch.cat((v, v_now), dim=1)
    exact = layer.output(attend(q, k, v, kind="hyla", causal=True).flatten(-2))
    for ours, theirs in zip(given, torch.autograd.grad(exact.sum(), parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_two_cached_steps_can_be_differentiated_together(kind: str) -> None:
    layer, x, cache = make(kind, causal=True), tokens(), KeyValueCache(TOKENS)
    (layer(x[:, :3], cache=cache).sum() + layer(x[:, 3:], cache=cache).sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_every_setting_reaches_the_computation() -> None:
    """The layer is `attend` of its projections, with the settings it was made with."""
    settings = {"activation": "tanh", "eps": 0.3, "rotary_base": 7.0, "positions": "rotary"}
    layer, x = make("hyla", **settings), tokens()
    bias = torch.randn(1, HEADS, TOKENS, TOKENS).double()
    mask = torch.rand(BATCH, 1, TOKENS, TOKENS) > 0.3
    q, k, v = (
        projection(x).unflatten(-1, (HEADS, SIZE))
        for projection in (layer.query, layer.key, layer.value)
    )
    q, k = (rotate(z, torch.arange(TOKENS), base=7.0) for z in (q, k))
    options = {"activation": "tanh", "eps": 0.3, "bias": bias, "mask": mask}
    exact = layer.output(attend(q, k, v, kind="hyla", **options).flatten(-2))
    torch.testing.assert_close(layer(x, bias=bias, mask=mask), exact)


def test_the_largest_distance_reaches_the_relative_bias() -> None:
    layer = make(positions="t5", buckets=4, max_distance=64)
    assert layer.relative_bias.bucket_of_distance.tolist() == t5_buckets(4, 64)


@pytest.mark.parametrize("kind", ["hyla", "softmax"])
@pytest.mark.parametrize("positions", ["none", "t5"])
def test_chosen_codes_under_masks_lengths_and_bias(kind: str, positions: str) -> None:
    layer, x = make(kind, positions=positions), tokens()
    options = {
        "mask": torch.rand(BATCH, 1, TOKENS, TOKENS) > 0.3,
        "lengths": torch.tensor([4, 6]),
        "bias": torch.randn(1, HEADS, TOKENS, TOKENS).double(),
    }
    every = layer.codes(x, **options)
    z = torch.einsum("bqkh,bkhd->bqhd", every, layer.value(x).unflatten(-1, (HEADS, SIZE)))
    if kind == "softmax":
        torch.testing.assert_close(layer.output(z.flatten(-2)), layer(x, **options))
    chosen = layer.codes(x, queries=[5, 1], keys=[3, 4], **options)
    torch.testing.assert_close(chosen, every[:, [5, 1]][:, :, [3, 4]])
    alone = layer.codes(x, queries=[0], keys=[1], bias=torch.zeros(TOKENS).double())
    torch.testing.assert_close(alone, layer.codes(x, queries=[0], keys=[1]))


def test_a_layer_made_on_the_meta_device_gets_everything_with_its_weights() -> None:
    layer, x = make(positions="t5"), tokens()
    with torch.device("meta"):
        empty = make(positions="t5")
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert empty(x).equal(layer(x))


@pytest.mark.parametrize("feed_forward", ["mlp", "moe"])
def test_a_model_made_on_the_meta_device_is_initialised_by_resetting_it(feed_forward: str) -> None:
    """As `torch.distributed.fsdp` does it: every parameter and buffer belongs to a module."""
    config = ModelConfig(
        5, 2, layers=1, width=12, heads=3, hidden_size=7, kind="hyla+deep", buckets=9,
        feed_forward=feed_forward,
    )  # fmt: skip
    whole = Transformer(config)
    with torch.device("meta"):
        empty = Transformer(config)
    empty = empty.to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(99)
    for module in empty.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for name, tensor in empty.state_dict().items():
        assert not (tensor == 99).any(), name
        if not tensor.is_floating_point():
            assert tensor.equal(whole.state_dict()[name]), name
        elif "weight" in name and "norm" not in name:
            assert 0.5 < tensor.std() / whole.state_dict()[name].std() < 2, name


def test_a_cache_begun_in_inference_mode_goes_on_outside_of_it() -> None:
    layer, x = make(causal=True), tokens()
    cache = KeyValueCache(x.shape[1])
    with torch.inference_mode():
        start = layer(x[:, :2], cache=cache)
    with torch.no_grad():
        middle = layer(x[:, 2:3], cache=cache)
    end = layer(x[:, 3:], cache=cache)
    torch.testing.assert_close(torch.cat((start.clone(), middle, end), dim=1), layer(x))
    end.sum().backward()
    assert layer.query.weight.grad is not None


def test_a_projection_may_be_wrapped() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    layer, x = make(), tokens()
    expected = layer(x)
    for name in ("query", "key", "value", "output"):
        setattr(layer, name, Wrapped(getattr(layer, name)))
    torch.testing.assert_close(layer(x), expected)
    with pytest.raises(ValueError, match="x: expected"):
        layer(x[0])


def test_the_backend_is_asked_for_at_every_call() -> None:
    x = tokens()
    layer, plain = make(), make(backend="reference")
    assert layer.backend is None
    plain.load_state_dict(layer.state_dict())
    assert plain(x).equal(layer(x))
    layer.backend = "thin"
    with pytest.raises(ValueError, match=r"backend: .thin. needs .*GPU, not on cpu; None takes"):
        layer(x)
    with pytest.raises(ValueError, match=r"backend: .tiles. needs .* on an NVIDIA GPU, not on cpu"):
        make(backend="tiles", dtype=torch.float32)(x.float())
    with pytest.raises(ValueError, match=r"backend: unknown name .referense.. Did you mean .refer"):
        make(backend="referense")


@pytest.mark.parametrize("positions", ["none", "t5"])
def test_a_bias_that_does_not_fit_is_refused_with_every_kind_of_positions(positions: str) -> None:
    layer, x = MultiHeadAttention(12, 3, positions=positions, buckets=8), torch.randn(2, 5, 12)
    for odd in (torch.ones(5, 5, dtype=torch.bool).tril(), torch.ones(5, 5).long(), 1.0):
        with pytest.raises(ValueError, match="bias: expected"):
            layer(x, bias=odd)
    with pytest.raises(ValueError, match=r"bias: expected \[keys\]"):
        layer(x, bias=torch.zeros(3, 5, 5))
    assert layer(x, bias=torch.zeros(5, 5)).shape == x.shape


@pytest.mark.parametrize("positions", ["none", "t5", "rotary"])
def test_no_tokens(positions: str) -> None:
    layer = MultiHeadAttention(12, 3, positions=positions, buckets=8)
    assert layer(torch.randn(2, 0, 12)).shape == (2, 0, 12)
    layer = MultiHeadAttention(12, 3, positions=positions, buckets=8, context_width=7)
    assert layer(torch.randn(2, 0, 12), torch.randn(2, 5, 7)).shape == (2, 0, 12)


def test_a_cache_keeps_what_a_backward_needs_of_frozen_keys() -> None:
    layer = MultiHeadAttention(12, 3, causal=True).double()
    for projection in (layer.key, layer.value):
        projection.requires_grad_(False)
    x, cache = torch.randn(2, 5, 12, dtype=torch.float64), KeyValueCache(5)
    steps = [layer(x[:, t : t + 1], cache=cache) for t in range(5)]
    torch.cat(steps, dim=1).square().sum().backward()
    assert layer.query.weight.grad is not None
    found = layer.query.weight.grad.clone()
    layer.zero_grad()
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, layer.query.weight.grad)
