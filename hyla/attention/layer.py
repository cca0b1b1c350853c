"""The drop-in attention layer, its key/value cache, and the latent codes on request."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hyla.attention import attend, latent_codes
from hyla.attention.positions import RelativeBias, rotate
from hyla.attention.variants import Kind, find_activation, find_kind
from hyla.errors import bad_value, unknown_name
from hyla.layers import Linear, lecun_normal_

POSITIONS = ("none", "t5", "rotary")


class KeyValueCache:
    """Keys and values of the tokens seen so far, for step-by-step decoding with one layer.

    The memory for `max_tokens` is taken at the first step. The cache holds constants: no gradient
    flows into earlier steps.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 1:
            raise bad_value("max_tokens", max_tokens, "a whole number of at least 1")
        self.max_tokens = max_tokens
        self.tokens = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k_BTHD: Tensor, v_BTHV: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of new tokens; returns those of all tokens so far."""
        end = self.tokens + k_BTHD.shape[-3]
        if end > self.max_tokens:
            raise bad_value("max_tokens", self.max_tokens, f"a cache for at least {end} tokens")
        if self._keys is None or self._values is None:
            self._keys = self._allocate(k_BTHD)
            self._values = self._allocate(v_BTHV)
        if self._keys.shape[:-3] != k_BTHD.shape[:-3]:
            expected = f"the batch of the earlier steps, {list(self._keys.shape[:-3])}"
            raise bad_value("cache", f"a batch of {list(k_BTHD.shape[:-3])}", expected)
        self._keys[..., self.tokens : end, :, :] = k_BTHD.detach()
        self._values[..., self.tokens : end, :, :] = v_BTHV.detach()
        self.tokens = end
        return self._keys[..., :end, :, :], self._values[..., :end, :, :]

    def _allocate(self, x_BTHD: Tensor) -> Tensor:
        return x_BTHD.new_empty((*x_BTHD.shape[:-3], self.max_tokens, *x_BTHD.shape[-2:]))


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention as a hypernetwork, of any kind in `hyla.attention.KINDS`.

    For a query q and a key k, the scores over the heads are the latent code

        a_{h,q,k} = sigma( Q_h^T K_h / sqrt(D_head) + bias )_{q,k}

    with sigma the softmax over keys, nothing, or RMSHead over heads. It configures a value network
    that is specific to the pair; the layer sums over keys. Standard attention (eq. hya-main):

        MHA_q(X)  = sum_k ( sum_h a_{h,q,k} W^out_h W^value_h ) x_k    = sum_k W_{q,k} x_k

    and HYLA, with a hidden layer and a nonlinearity phi:

        HYLA_q(X) = sum_k ( sum_h a_{h,q,k} W^out_h ) phi( sum_h a_{h,q,k} W^value_h x_k )
                  = sum_k W'_{q,k} phi( W_{q,k} x_k )

    | here                                  | paper                                 |
    |---------------------------------------|---------------------------------------|
    | `width`, `heads`, `head_size`         | D, H, D^head                          |
    | `query`, `key`, `value`, `output`     | W^query, W^key, W^value, W^out        |
    | `deep`                                | W^{value'}_h of the deep value network|
    | `kind`: normaliser, value network     | sigma, f(x; W)                        |
    | `activation`                          | phi                                   |
    | `codes(...)`                          | a_{h,q,k}, the latent code z          |
    | `hypernetwork.value_networks(...)`    | W_{q,k} and W'_{q,k}                  |

    All four projections have biases unless `bias=False`. `positions="t5"` adds a relative position
    bias to the scores (`buckets` and `max_distance`), `"rotary"` turns queries and keys. With
    `context_width`, keys and values come from a context of that width (cross-attention).

    >>> layer = MultiHeadAttention(width=48, heads=6, kind="hyla", causal=True)
    >>> layer(torch.randn(2, 10, 48)).shape
    torch.Size([2, 10, 48])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_size: int | None = None,
        kind: str | Kind = "hyla",
        activation: str = "relu",
        causal: bool = False,
        positions: str = "none",
        buckets: int = 32,
        max_distance: int | None = None,
        rotary_base: float = 10_000.0,
        context_width: int | None = None,
        bias: bool = True,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kind = find_kind(kind)
        find_activation(self.kind, activation)
        if positions not in POSITIONS:
            raise unknown_name("positions", positions, POSITIONS)
        if width < 1 or heads < 1:
            raise bad_value("width, heads", f"{width} and {heads}", "whole numbers of at least 1")
        if head_size is None:
            if width % heads:
                expected = f"a divisor of width = {width}, or a head_size of your own"
                raise bad_value("heads", heads, expected)
            head_size = width // heads
        if head_size < 1 or (positions == "rotary" and head_size % 2):
            parity = "even " if positions == "rotary" else ""
            raise bad_value("head_size", head_size, f"an {parity}whole number of at least 1")
        if not eps > 0:
            raise bad_value("eps", eps, "a number above 0 (masked scores are 0, and 0 / 0 is NaN)")
        if causal and context_width is not None:
            expected = "False with context_width: a context has no order relative to the queries"
            raise bad_value("causal", causal, expected)
        self.width, self.heads, self.head_size = width, heads, head_size
        self.activation, self.causal, self.eps = activation, causal, eps
        self.context_width, self.rotary_base = context_width, rotary_base
        self.rotary = positions == "rotary"
        inner, source = heads * head_size, width if context_width is None else context_width
        self.query = Linear(width, inner, bias=bias, device=device, dtype=dtype)
        self.key = Linear(source, inner, bias=bias, device=device, dtype=dtype)
        self.value = Linear(source, inner, bias=bias, device=device, dtype=dtype)
        self.output = Linear(inner, width, bias=bias, device=device, dtype=dtype)
        self.relative_bias: RelativeBias | None = None
        if positions == "t5":
            self.relative_bias = RelativeBias(
                heads, buckets, max_distance, device=device, dtype=dtype
            )
        self.deep: nn.Parameter | None = None
        if self.kind.value_network == "deep":
            shape = (heads, head_size, head_size)
            self.deep = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            lecun_normal_(self.deep, head_size)

    def extra_repr(self) -> str:
        return f"kind={self.kind.title!r}, heads={self.heads}, causal={self.causal}"

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x: `[batch, tokens, width]`; context: `[batch, keys, context_width]` in cross-attention.

        mask, lengths, bias: as in `hyla.attention.attend`. cache: the tokens before x, to which
        those of x are added.
        """
        source = self._source(x, context)
        if cache is not None and not self.causal:
            raise bad_value("cache", "one for a layer with causal=False", "a causal layer")
        start = 0 if cache is None else cache.tokens
        query_positions = torch.arange(start, start + x.shape[-2], device=x.device)
        source_positions = (
            query_positions if context is None else torch.arange(source.shape[-2], device=x.device)
        )
        q_BQHD = self._project(self.query, x, query_positions)
        k_BKHD = self._project(self.key, source, source_positions)
        v_BKHD = self._project(self.value, source)
        if cache is not None:
            k_BKHD, v_BKHD = cache.append(k_BKHD, v_BKHD)
            source_positions = torch.arange(k_BKHD.shape[-3], device=x.device)
        z_BQHD = attend(
            q_BQHD,
            k_BKHD,
            v_BKHD,
            kind=self.kind,
            activation=self.activation,
            causal=self.causal,
            mask=mask,
            lengths=lengths,
            bias=self._score_bias(query_positions, source_positions, bias),
            deep=None if self.deep is None else self.deep.unsqueeze(-4).to(v_BKHD.dtype),
            eps=self.eps,
        )
        return self.output(z_BQHD.flatten(-2))

    def codes(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        queries: Sequence[int] | Tensor | None = None,
        keys: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Latent codes of the chosen queries and keys, `[batch, queries, keys, heads]`.

        Only the chosen pairs are computed; the softmax kinds need the scores of all keys for the
        chosen queries. Indices may be negative, as in Python; None means all tokens.

        >>> layer = MultiHeadAttention(width=48, heads=6, kind="hyla")
        >>> layer.codes(torch.randn(2, 10, 48), queries=[-1], keys=[-1]).shape
        torch.Size([2, 1, 1, 6])
        """
        source = self._source(x, context)
        query_positions = token_index("queries", queries, x.shape[-2], x.device)
        chosen_keys = token_index("keys", keys, source.shape[-2], x.device)
        over_all_keys = self.kind.normaliser == "softmax"
        key_positions = (
            torch.arange(source.shape[-2], device=x.device) if over_all_keys else chosen_keys
        )
        x, source = x.index_select(-2, query_positions), source.index_select(-2, key_positions)
        code_BQKH = latent_codes(
            self._project(self.query, x, query_positions),
            self._project(self.key, source, key_positions),
            kind=self.kind,
            mask=key_positions <= query_positions[:, None] if self.causal else None,
            bias=self._score_bias(query_positions, key_positions, None),
            eps=self.eps,
        )
        return code_BQKH.index_select(-2, chosen_keys) if over_all_keys else code_BQKH

    def _source(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The tokens that keys and values are made of."""
        _check_tokens("x", x, self.width)
        if self.context_width is None:
            if context is not None:
                expected = "None (the layer was made without context_width)"
                raise bad_value("context", list(context.shape), expected)
            return x
        if context is None:
            raise bad_value("context", None, f"[batch, tokens, {self.context_width}]")
        _check_tokens("context", context, self.context_width)
        return context

    def _project(self, projection: Linear, x: Tensor, positions: Tensor | None = None) -> Tensor:
        heads_BTHD = projection(x).unflatten(-1, (self.heads, self.head_size))
        if self.rotary and positions is not None:
            return rotate(heads_BTHD, positions, self.rotary_base)
        return heads_BTHD

    def _score_bias(
        self, query_positions: Tensor, key_positions: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        if self.relative_bias is None:
            return bias
        relative = self.relative_bias(query_positions, key_positions)
        return relative if bias is None else relative + bias


def _check_tokens(name: str, tokens: Tensor, width: int) -> None:
    if tokens.ndim < 3 or tokens.shape[-1] != width:
        raise bad_value(name, list(tokens.shape), f"[batch, tokens, {width}]")


def token_index(
    name: str, index: Sequence[int] | Tensor | None, tokens: int, device: torch.device
) -> Tensor:
    """Token numbers as a tensor of positions 0 .. tokens - 1; None means all of them."""
    numbers = range(tokens) if index is None else [int(i) for i in index]
    if any(not -tokens <= i < tokens for i in numbers):
        raise bad_value(name, list(numbers), f"token numbers from {-tokens} to {tokens - 1}")
    return torch.tensor([i % tokens for i in numbers], dtype=torch.int64, device=device)
