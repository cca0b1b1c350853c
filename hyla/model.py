"""The decoder-only transformer of the paper: pre-norm blocks over any kind of attention.

Shapes: B leading axes, T tokens, D width, E experts, F hidden size of the feed-forward layer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from hyla.attention.cache import KeyValueCache
from hyla.attention.layer import (
    NO_DROPOUT,
    POSITIONS,
    MultiHeadAttention,
    check_dropout,
    token_index,
)
from hyla.attention.registry import ACTIVATIONS, find
from hyla.attention.variants import Kind, KindName
from hyla.config import Config
from hyla.errors import bad_value
from hyla.layers import Embedding, LayerNorm, Linear, gelu, is_watched, lecun_normal_, linear

FEED_FORWARDS = ("mlp", "moe")
INPUTS = ("continuous", "vocabulary")


@dataclass(frozen=True)
class ModelConfig(Config):
    """A transformer. The functions below give the paper's three.

    inputs: tokens are `continuous`, of `input_size` numbers, or words of a `vocabulary` of so many.
    layers: blocks of attention and feed-forward layer.
    width: size of a token between the layers.
    heads: number of heads of each layer.
    head_size: size of queries, keys and values of one head.
    kind: kind of attention: a name of `hyla.KINDS`, or a `Kind`, which is stored by its parts, such
        as "softmax.deep.nonlinear", unless it is registered.
    activation: nonlinearity of the value network, for kinds that have one.
    causal: mask later tokens.
    positions: `t5` (a bias for each head and distance), `rotary` or `none`.
    buckets: number of distances of the T5 bias; larger distances share the last one.
    feed_forward: `mlp`, or `moe`, a mixture of experts.
    hidden_size: hidden size of the feed-forward layer.
    experts: number of experts of the mixture; the paper does not give it.
    top_k: experts that each token takes; the paper does not give it.
    tied: the output layer is the transposed embedding of the vocabulary, without bias.
    attention_dropout: fraction of query-key pairs that a training step drops, for all sequences and
        heads; 0.1 in the published code.

    >>> ModelConfig(input_size=5, output_size=1, kind="hila")
    Traceback (most recent call last):
    ValueError: kind: unknown name 'hila'. Did you mean 'hyla'...
    """

    input_size: int
    output_size: int
    inputs: str = "continuous"
    layers: int = 4
    width: int = 128
    heads: int = 16
    head_size: int = 4
    kind: KindName = KindName()  # noqa: RUF009  a descriptor
    activation: str = "relu"
    causal: bool = False
    positions: str = "t5"
    buckets: int = 36
    feed_forward: str = "mlp"
    hidden_size: int = 256
    experts: int = 4
    top_k: int = 2
    tied: bool = False
    attention_dropout: float = 0.0

    choices: ClassVar[dict[str, Collection[str]]] = {
        "inputs": INPUTS,
        "positions": POSITIONS,
        "feed_forward": FEED_FORWARDS,
    }

    def __post_init__(self) -> None:
        self._check_types()
        check_dropout(self.attention_dropout)
        self._check_at_least(1, "input_size", "output_size", "layers", "width", "heads")
        self._check_at_least(1, "head_size", "hidden_size", "experts", "top_k")
        self._check_at_least(2, "buckets")
        self._check_choices()
        find(ACTIVATIONS, "activation", self.activation)
        if self.positions == "rotary" and self.head_size % 2:
            raise bad_value("head_size", self.head_size, "an even number for rotary positions")
        if self.feed_forward == "moe" and self.top_k > self.experts:
            raise bad_value("top_k", self.top_k, f"at most the number of experts, {self.experts}")
        if self.tied and (self.inputs != "vocabulary" or self.input_size != self.output_size):
            given = f"True with {self.inputs} inputs, sizes {self.input_size}, {self.output_size}"
            raise bad_value("tied", given, "a vocabulary that is also the output")

    def with_heads(self, heads: int) -> "ModelConfig":
        """The same with so many heads, which share the size of all together."""
        size = self.heads * self.head_size
        if heads < 1 or size % heads:
            raise bad_value("heads", heads, f"a divisor of {size}, the size of all heads")
        return replace(self, heads=heads, head_size=size // heads)


def fuzzy_logic_model(kind: str | Kind = "hyla", examples: int = 32) -> ModelConfig:
    """The paper's model for fuzzy logic with 4 variables and this many examples in context."""
    return ModelConfig(
        input_size=5,
        output_size=1,
        layers=2,
        heads=8,
        head_size=2,
        kind=kind,
        buckets=examples,
    )


def sraven_model(
    kind: str | Kind = "hyla",
    *,
    layers: int = 4,
    width_factor: int = 1,
    more_heads: bool = True,
    features: int = 4,
    values: int = 8,
) -> ModelConfig:
    """The paper's model for SRAVEN with K features of F values.

    The width factor multiplies width, hidden size and the number of heads (the authors' code), or
    with `more_heads=False` the head size instead (the paper's text).
    """
    return ModelConfig(
        input_size=values,
        output_size=values,
        layers=layers,
        width=128 * width_factor,
        heads=16 * width_factor if more_heads else 16,
        head_size=4 if more_heads else 4 * width_factor,
        hidden_size=256 * width_factor,
        kind=kind,
        buckets=9 * features,
    )


def language_model(kind: str | Kind = "hyla", words: int = 32_000) -> ModelConfig:
    """The paper's language model: 6 causal layers of width 512 with rotary positions."""
    return ModelConfig(
        input_size=words,
        output_size=words,
        inputs="vocabulary",
        layers=6,
        width=512,
        heads=8,
        head_size=64,
        hidden_size=2048,
        kind=kind,
        causal=True,
        positions="rotary",
        tied=True,
    )


class FeedForward(nn.Module):
    """One hidden layer with GELU, at each token on its own."""

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden = Linear(width, hidden_size)
        self.output = Linear(hidden_size, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        if is_watched(self.output):
            return self.output(gelu(hidden))
        return linear(hidden, self.output.weight, self.output.bias, after_gelu=True)


class MixtureOfExperts(nn.Module):
    """Sparsely gated experts: sum_i Softmax(TopK(W^gate x))_i W^up_i gelu(W^down_i x).

    As in the paper's formula there are no biases; `down` comes first. The gate of an expert outside
    the top k is exactly 0. All experts are computed for all tokens, which costs experts / top_k
    times the arithmetic of a dispatched layer but no gather, and keeps every shape static.
    """

    def __init__(self, width: int, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = Linear(width, experts, bias=False)
        self.down = nn.Parameter(torch.empty(experts, hidden_size, width))
        self.up = nn.Parameter(torch.empty(experts, width, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws `down` and `up` anew; the gate is a module of its own."""
        lecun_normal_(self.down, self.down.shape[-1])
        lecun_normal_(self.up, self.up.shape[-1])

    def gates(self, x: Tensor) -> Tensor:
        """How much of each expert a token takes, `[batch, tokens, experts]`."""
        logits_BTE = self.gate(x)
        # Not topk and scatter, which the compiler leaves to kernels of their own.
        i_BTE1, j_BT1E = logits_BTE.unsqueeze(-1), logits_BTE.unsqueeze(-2)
        experts = torch.arange(logits_BTE.shape[-1], device=x.device)
        before = (j_BT1E > i_BTE1) | ((j_BT1E == i_BTE1) & (experts < experts.unsqueeze(-1)))
        kept_BTE = before.sum(dim=-1) < self.top_k
        return logits_BTE.masked_fill(~kept_BTE, -torch.inf).softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        # The experts side by side, as two linear layers of E x F hidden units.
        hidden_BTG = gelu(linear(x, self.down.flatten(-3, -2), None))
        gates_BTG = self.gates(x).repeat_interleave(self.down.shape[-2], dim=-1)
        return linear(hidden_BTG * gates_BTG, self.up.movedim(-3, -2).flatten(-2), None)


class Block(nn.Module):
    """Z = X + Attention(LayerNorm(X)), Y = Z + FeedForward(LayerNorm(Z))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.width)
        self.attention = MultiHeadAttention(
            config.width,
            config.heads,
            head_size=config.head_size,
            kind=config.kind,
            activation=config.activation,
            causal=config.causal,
            positions=config.positions,
            buckets=config.buckets,
            attention_dropout=config.attention_dropout,
        )
        self.feed_forward_norm = LayerNorm(config.width)
        self.feed_forward: FeedForward | MixtureOfExperts
        if config.feed_forward == "moe":
            self.feed_forward = MixtureOfExperts(
                config.width, config.hidden_size, config.experts, config.top_k
            )
        else:
            self.feed_forward = FeedForward(config.width, config.hidden_size)

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        cache: KeyValueCache | None = None,
        last: int | None = None,
        factors: Tensor | None = None,
    ) -> Tensor:
        change = self.attention(
            self.attention_norm(x), lengths=lengths, cache=cache, last=last, factors=factors
        )
        z = x[..., -change.shape[-2] :, :] + change
        return z + self.feed_forward(self.feed_forward_norm(z))


class Transformer(nn.Module):
    """Decoder-only transformer for continuous tokens or a vocabulary.

    Make it under `torch.manual_seed`, or with `build(config, seed)`; `hyla.layers.stack` makes a
    population of several.

    >>> model = Transformer(sraven_model("hyla"))
    >>> model(torch.randn(2, 36, 8)).shape
    torch.Size([2, 36, 8])
    >>> model.latent_codes(torch.randn(2, 36, 8), layers=[3], queries=[-1], keys=[-1])[3].shape
    torch.Size([2, 1, 1, 16])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: Embedding | Linear
        if config.inputs == "vocabulary":
            self.embedding = Embedding(config.input_size, config.width)
        else:
            self.embedding = Linear(config.input_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        self.output = None if config.tied else Linear(config.width, config.output_size)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        cache: Sequence[KeyValueCache] | None = None,
        last: int | None = None,
        at: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> Tensor:
        """tokens: numbers `[batch, tokens, input_size]` or words `[batch, tokens]`.

        lengths: how many tokens of each sequence take part. cache: from `new_cache`, for decoding
        sequences of one length; it takes no lengths, which would hide the new tokens.
        last: give only the logits of the last so many tokens; the last block computes no others.
        at: give only the logits of the tokens at these positions, `[batch, number]`.
        factors: of the latent codes, `[layers, tokens, tokens]`, or with a population `[layers,
            member, tokens, tokens]`, as `dropout_factors` makes them; without them a model in
            training draws its own.
        Returns the logits of every token (or the last ones), `[batch, tokens, output_size]`.
        """
        if cache is not None and len({id(part) for part in cache}) != len(self.blocks):
            expected = f"{len(self.blocks)} different ones, as new_cache makes them"
            raise bad_value("cache", f"{len(cache)} caches", expected)
        if cache is not None and lengths is not None:
            raise bad_value("lengths", list(lengths.shape), "None with a cache")
        x_BTD = self.embed(tokens)
        for index, block in enumerate(self.blocks):
            asking = last if index == len(self.blocks) - 1 else None
            part = None if cache is None else cache[index]
            of_pairs = None if factors is None else factors[index]
            if of_pairs is not None and of_pairs.ndim > 2:
                of_pairs = of_pairs.unsqueeze(-3)  # all sequences of a member share them
            x_BTD = block(x_BTD, lengths=lengths, cache=part, last=asking, factors=of_pairs)
        if at is not None:
            x_BTD = x_BTD.gather(-2, at.unsqueeze(-1).expand(*at.shape, x_BTD.shape[-1]))
        x_BTD = self.norm(x_BTD)
        if self.output is not None:
            return self.output(x_BTD)
        return linear(x_BTD, self.embedding.weight, None)

    def latent_codes(
        self,
        tokens: Tensor,
        *,
        layers: Sequence[int] | None = None,
        queries: Sequence[int] | Tensor | None = None,
        keys: Sequence[int] | Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """Latent codes `[batch, queries, keys, heads]` of the chosen layers and tokens.

        Nothing behind the last chosen layer is computed. Layers, queries and keys may be counted
        from the end with negative numbers; None means all of them. The result is by layer number,
        counted from 0.
        """
        count = len(self.blocks)
        wanted = set(token_index("layers", layers, count, torch.device("cpu")).tolist())
        codes: dict[int, Tensor] = {}
        x_BTD = self.embed(tokens)
        for index, block in enumerate(self.blocks[: max(wanted, default=-1) + 1]):
            assert isinstance(block, Block)
            if index in wanted:
                normed = block.attention_norm(x_BTD)
                codes[index] = block.attention.codes(
                    normed, queries=queries, keys=keys, lengths=lengths
                )
            if index < max(wanted):
                x_BTD = block(x_BTD, lengths=lengths, factors=NO_DROPOUT)
        return codes

    def new_cache(self, max_tokens: int) -> list[KeyValueCache]:
        """An empty key/value cache for each layer, for decoding up to `max_tokens` tokens."""
        if not self.config.causal:
            raise bad_value("cache", "one for a model with causal=False", "a causal model")
        return [KeyValueCache(max_tokens) for _ in self.blocks]

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first block gets, `[batch, tokens, width]`."""
        stacked = self.norm.weight.ndim == 2
        axes = "member, batch, tokens" if stacked else "batch, tokens"
        if self.config.inputs == "continuous":
            if tokens.ndim != 3 + stacked or tokens.shape[-1] != self.config.input_size:
                expected = f"[{axes}, {self.config.input_size}]"
                raise bad_value("tokens", list(tokens.shape), expected)
        elif tokens.ndim != 2 + stacked or tokens.dtype not in (torch.int32, torch.int64):
            given = f"{tokens.dtype} {list(tokens.shape)}"
            raise bad_value("tokens", given, f"whole numbers [{axes}]")
        device, dtype = tokens.device.type, self.embedding.weight.dtype
        if device == "meta" or not torch.is_autocast_enabled(device):  # meta knows no autocast
            return self.embedding(tokens)
        # The residual stream has the precision of the parameters, under autocast too. So has what
        # flows back to the embedding: with tokens of zeros, LayerNorm makes that a thousand times
        # what flows back elsewhere, too much for 16 bits.
        with torch.autocast(device, enabled=False):
            continuous = self.config.inputs == "continuous"
            return self.embedding(tokens.to(dtype) if continuous else tokens)


def build(config: ModelConfig, seed: int) -> Transformer:
    """The transformer that this seed initialises, whatever the global random state.

    >>> one, same = build(sraven_model(), seed=1), build(sraven_model(), seed=1)
    >>> one.norm.weight.equal(same.norm.weight)
    True
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # of the CPU alone
        return Transformer(config)


def check_single(model: Transformer) -> None:
    """Refuses a population, or a model of others, where one of ours is wanted."""
    if not isinstance(model, Transformer):
        expected = "a hyla.Transformer; for others take attention_codes(scores)"
        raise bad_value("model", type(model).__name__, expected)
    if model.norm.weight.ndim != 1:
        raise bad_value("model", "a population", "one model, such as hyla.member(population, 0)")
