"""The drop-in attention layer, and its latent codes on request."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hyla.attention import attend, check_eps, check_pairs, latent_codes
from hyla.attention.cache import KeyValueCache
from hyla.attention.kernels.choice import BACKENDS
from hyla.attention.positions import RelativeBias, rotate
from hyla.attention.reference import allowed_pairs
from hyla.attention.variants import Kind, find_activation, find_kind
from hyla.errors import bad_value, unknown_name
from hyla.layers import Linear, is_watched, lecun_normal_, linear
from hyla.products import FEWEST

POSITIONS = ("none", "t5", "rotary")
NO_DROPOUT = torch.ones(())  # in the place of factors: none, in training neither


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention as a hypernetwork, of any kind: a name in `hyla.KINDS`, or a `Kind`.

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

    All four projections have biases unless `bias=False`; `deep` has none, and a variance of
    1 / head_size at the start. `positions="t5"` adds a relative position bias to the scores
    (`buckets` and `max_distance`), in which all keys after the query share one bucket, causal or
    not; `"rotary"` turns queries and keys. With `context_width`, keys and values come from a
    context of that width (cross-attention). `attention_dropout` is the fraction of pairs of a
    query and a key that a layer in training leaves out, the same for all heads and sequences. Only
    softmax codes sum to 1: the output of the other kinds grows with the number of keys. `backend`
    is that of `attend`: None chooses at every call.

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
        attention_dropout: float = 0.0,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kind = find_kind(kind)
        find_activation(self.kind, activation)
        if backend is not None and backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
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
            parity = "an even " if positions == "rotary" else "a "
            raise bad_value("head_size", head_size, f"{parity}whole number of at least 1")
        check_eps(eps)
        check_dropout(attention_dropout)
        if not 1 < rotary_base < torch.inf:
            raise bad_value("rotary_base", rotary_base, "a finite number above 1")
        if causal and context_width is not None:
            expected = "False with context_width: a context has no order relative to the queries"
            raise bad_value("causal", causal, expected)
        self.width, self.heads, self.head_size = width, heads, head_size
        self.activation, self.causal, self.eps, self.backend = activation, causal, eps, backend
        self.context_width, self.rotary_base = context_width, rotary_base
        self.attention_dropout = attention_dropout
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
        if self.kind.uses_deep:
            shape = (heads, head_size, head_size)
            self.deep = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws `deep` anew; all else belongs to modules of its own."""
        if self.deep is not None:
            lecun_normal_(self.deep, self.head_size)

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
        last: int | None = None,
        factors: Tensor | None = None,
    ) -> Tensor:
        """x: `[batch, tokens, width]`; context: `[batch, keys, context_width]` in cross-attention.

        mask, lengths, bias: as in `hyla.attention.attend`. cache: the tokens before x, to which
        those of x are added. last: only the last so many tokens of x are queries, and have an
        output; all of them are keys. factors: of the latent codes of all tokens of x, as in
        `attend`; without them a layer in training with `attention_dropout` draws its own, unless
        there is a cache.
        """
        first = 0 if last is None else first_of_last(last, x.shape[-2])
        source = self._source(x, context)
        if cache is not None and not self.causal:
            raise bad_value("cache", "one for a layer with causal=False", "a causal layer")
        start = 0 if cache is None else cache.tokens
        if source is x and self._projects_together(x):
            q_BQHD, k_BKHD, v_BKHD = self._together(x, first)
        else:
            q_BQHD = self._per_head(self.query(x[..., first:, :]))
            k_BKHD, v_BKHD = self._per_head(self.key(source)), self._per_head(self.value(source))
        q_BQHD, k_BKHD = self._turned(q_BQHD, start + first), self._turned(k_BKHD, start)
        if cache is not None:
            k_BKHD, v_BKHD = cache.extended(k_BKHD, v_BKHD)
        if self.relative_bias is not None:
            queries, keys = q_BQHD.shape[-3], k_BKHD.shape[-3]
            check_pairs((*x.shape[:-2], self.heads, queries, keys), mask, lengths, bias)
            relative = self.relative_bias(queries, keys, start + first)
            bias = relative if bias is None else relative + bias
        z_BQHD = attend(
            q_BQHD,
            k_BKHD,
            v_BKHD,
            kind=self.kind,
            activation=self.activation,
            causal=self.causal,
            mask=mask,
            lengths=lengths,
            bias=bias,
            deep=None if self.deep is None else self.deep.unsqueeze(-4).to(v_BKHD.dtype),
            factors=self._factors(q_BQHD, k_BKHD, factors, first, cache is not None),
            eps=self.eps,
            backend=self.backend,
        )
        if cache is not None:
            cache.advance(x.shape[-2])
        return self.output(z_BQHD.flatten(-2))

    def codes(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        queries: Sequence[int] | Tensor | None = None,
        keys: Sequence[int] | Tensor | None = None,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Latent codes of the chosen queries and keys, `[batch, queries, keys, heads]`.

        Only the chosen pairs are computed; a normaliser over keys, such as softmax, needs the
        scores of all keys for the chosen queries. Token numbers may be negative, as in Python;
        None means all tokens. mask, lengths and bias are those of `forward`, for all tokens.

        >>> layer = MultiHeadAttention(width=48, heads=6, kind="hyla")
        >>> layer.codes(torch.randn(2, 10, 48), queries=[-1], keys=[-1]).shape
        torch.Size([2, 1, 1, 6])
        """
        source = self._source(x, context)
        query_positions = token_index("queries", queries, x.shape[-2], x.device)
        chosen_keys = token_index("keys", keys, source.shape[-2], x.device)
        over_keys = self.kind.over_keys
        key_positions = (
            torch.arange(source.shape[-2], device=x.device) if over_keys else chosen_keys
        )
        pairs = (*x.shape[:-2], self.heads, x.shape[-2], source.shape[-2])
        check_pairs(pairs, mask, lengths, bias)
        bias = _choose(bias, query_positions, key_positions)
        if self.relative_bias is not None:
            relative = self.relative_bias.at(query_positions, key_positions)
            bias = relative if bias is None else relative + bias
        allowed = allowed_pairs(
            query_positions,
            key_positions,
            causal=self.causal,
            mask=_choose(mask, query_positions, key_positions),
            lengths=lengths,
        )
        code_BQKH = latent_codes(
            self._coded(self.query, x, query_positions),
            self._coded(self.key, source, key_positions),
            kind=self.kind,
            mask=allowed,
            bias=bias,
            eps=self.eps,
        )
        return code_BQKH.index_select(-2, chosen_keys) if over_keys else code_BQKH

    def _source(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The tokens that keys and values are made of."""
        self._check_tokens("x", x, self.width)
        if self.context_width is None:
            if context is not None:
                expected = "None (the layer was made without context_width)"
                raise bad_value("context", list(context.shape), expected)
            return x
        if context is None:
            raise bad_value("context", None, f"[batch, tokens, {self.context_width}]")
        self._check_tokens("context", context, self.context_width)
        return context

    def _check_tokens(self, name: str, tokens: Tensor, width: int) -> None:
        weight = getattr(self.query, "weight", None)  # what stands in its place may have none
        stacked = isinstance(weight, Tensor) and weight.ndim == 3
        if tokens.ndim < 3 + stacked or tokens.shape[-1] != width:
            axes = "member, batch, tokens" if stacked else "batch, tokens"
            raise bad_value(name, list(tokens.shape), f"[{axes}, {width}]")

    def _factors(
        self, q: Tensor, k: Tensor, given: Tensor | None, first: int, decoding: bool
    ) -> Tensor | None:
        """Factors of the codes of the queries, those from a position on; None if all are 1."""
        if given is not None:
            return None if given is NO_DROPOUT else given[..., first:, :]
        if not (self.training and self.attention_dropout) or decoding:
            return None
        pairs = (*q.shape[:-4], 1, q.shape[-3], k.shape[-3])  # each member has its own
        uniform = torch.rand(pairs, device=q.device)
        return dropout_factors(uniform, self.attention_dropout)

    def _coded(self, projection: Linear, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys of the chosen tokens."""
        return self._turned(self._per_head(projection(x.index_select(-2, positions))), positions)

    def _projects_together(self, x: Tensor) -> bool:
        """Whether one product makes queries, keys and values: on a CPU, if nobody watches them.

        Of few tokens joining the weights takes longer.
        """
        layers = self.query, self.key, self.value
        if x.device.type != "cpu" or x.numel() < FEWEST * self.width:
            return False
        alike = len({layer.bias is None for layer in layers if isinstance(layer, Linear)}) == 1
        return alike and not any(map(is_watched, layers))

    def _together(self, x: Tensor, first: int) -> tuple[Tensor, ...]:
        """Queries from a position on, keys and values, as parts of one product if that is 0."""
        one_by_one = [] if first == 0 else [self._per_head(self.query(x[..., first:, :]))]
        projections = (self.query, self.key, self.value)[len(one_by_one) :]
        weight = torch.cat(tuple(one.weight for one in projections), dim=-2)
        biases: list[Tensor] = [one.bias for one in projections if one.bias is not None]
        product = linear(x, weight, torch.cat(biases, dim=-1) if biases else None)
        heads = product.unflatten(-1, (-1, self.heads, self.head_size))
        return *one_by_one, *heads.unbind(-3)

    def _per_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_size))

    def _turned(self, x_BTHD: Tensor, positions: Tensor | int) -> Tensor:
        """Queries or keys of tokens at these positions, or at this one and those after it."""
        if not self.rotary:
            return x_BTHD
        if not isinstance(positions, Tensor):
            positions = torch.arange(positions, positions + x_BTHD.shape[-3], device=x_BTHD.device)
        return rotate(x_BTHD, positions, self.rotary_base)


def _choose(pairs: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor | None:
    """The chosen queries and keys of a tensor that broadcasts to `[batch, heads, Q, K]`."""
    if pairs is None:
        return None
    if pairs.shape[-1] != 1:
        pairs = pairs.index_select(-1, keys)
    if pairs.ndim > 1 and pairs.shape[-2] != 1:
        pairs = pairs.index_select(-2, queries)
    return pairs


def check_dropout(fraction: float) -> None:
    """Refuses what is no fraction of pairs to leave out."""
    if not 0 <= fraction < 1:
        raise bad_value("attention_dropout", fraction, "a fraction of at least 0 and below 1")


def dropout_factors(uniform: Tensor, fraction: float) -> Tensor:
    """Factors of latent codes from uniform random numbers: 0 for a fraction, else such that the
    mean over draws is 1.

    >>> dropout_factors(torch.tensor([0.1, 0.3]), fraction=0.2).tolist()
    [0.0, 1.25]
    """
    return torch.where(uniform < fraction, 0.0, 1 / (1 - fraction)).to(uniform.dtype)


def first_of_last(last: int, tokens: int) -> int:
    """The position of the first of the last so many tokens."""
    if not 1 <= last <= tokens:
        raise bad_value("last", last, f"a whole number from 1 to the {tokens} tokens")
    return tokens - last


def token_index(
    name: str, index: Sequence[int] | Tensor | None, tokens: int, device: torch.device
) -> Tensor:
    """Token numbers as a tensor of positions 0 .. tokens - 1; None means all of them."""
    if index is None:
        return torch.arange(tokens, device=device)
    numbers = index.tolist() if isinstance(index, Tensor) else index
    whole = isinstance(numbers, Sequence) and all(type(number) is int for number in numbers)
    if not whole or any(not -tokens <= number < tokens for number in numbers):
        expected = f"a list of whole numbers from {-tokens} to {tokens - 1}"
        raise bad_value(name, numbers, expected)
    return torch.tensor([number % tokens for number in numbers], dtype=torch.int64, device=device)
