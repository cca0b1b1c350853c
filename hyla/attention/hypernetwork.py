"""The hypernetwork made explicit: the value network of each chosen key-query pair.

Shapes: B leading axes, Q queries, K keys, H heads, V head size, E width of the layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, einsum

from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import find_activation
from hyla.errors import bad_value

EXPLICIT = ("linear", "mlp", "deep")  # value networks whose weights are written out below


@dataclass(frozen=True)
class ValueNetwork:
    """One network per key-query pair: weight matrices, with the nonlinearity between them.

    `weights[0]` is the paper's W_{q,k}, `weights[-1]` of HYLA its W'_{q,k}; each has the shape
    `[batch, queries, keys, outputs, inputs]`. Standard attention has a single matrix. `bias` is
    what the biases of the value projections add after the first one.
    """

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    phi: Callable[[Tensor], Tensor]

    def __call__(self, x_BKE: Tensor) -> Tensor:
        """What each pair contributes, `[batch, queries, keys, width]`, given the keys' tokens.

        Its sum over all keys, plus the bias of the output projection, is the layer's output.
        """
        keys = self.weights[0].shape[-3]
        if x_BKE.shape[-2] != keys:
            raise bad_value("x", list(x_BKE.shape), f"the tokens of the {keys} chosen keys")
        h_BQKE = einsum("...qkoe,...ke->...qko", self.weights[0], x_BKE)
        if self.bias is not None:
            h_BQKE = h_BQKE + self.bias
        for weight in self.weights[1:]:
            h_BQKE = einsum("...qkoi,...qki->...qko", weight, self.phi(h_BQKE))
        return h_BQKE


def value_networks(
    layer: MultiHeadAttention,
    x: Tensor,
    context: Tensor | None = None,
    *,
    queries: Sequence[int] | Tensor | None = None,
    keys: Sequence[int] | Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> ValueNetwork:
    """Materialises the value networks of a layer for the chosen queries and keys.

    The arguments are those of `MultiHeadAttention.codes`. What a registered value network computes
    cannot be read from its function, so such a layer is refused.

    >>> import torch
    >>> layer, x = MultiHeadAttention(width=6, heads=3, kind="hyla"), torch.randn(1, 5, 6)
    >>> networks = value_networks(layer, x, queries=[-1])
    >>> [list(weight.shape) for weight in networks.weights]
    [[1, 1, 5, 2, 6], [1, 1, 5, 6, 2]]
    >>> y = networks(x).sum(dim=-2) + layer.output.bias
    >>> y.allclose(layer(x)[:, -1:], atol=1e-5)
    True
    """
    if layer.kind.value_network not in EXPLICIT:
        given, expected = layer.kind.value_network, f"one of {', '.join(EXPLICIT)}"
        raise bad_value("the layer's value network", repr(given), expected)
    a_BQKH = layer.codes(
        x, context, queries=queries, keys=keys, mask=mask, lengths=lengths, bias=bias
    ).to(layer.value.weight.dtype)
    heads_size = (layer.heads, layer.head_size)
    # The axis of size 1 stands for the batch, behind the population if there is one.
    value_HVE = layer.value.weight.unflatten(-2, heads_size).unsqueeze(-4)
    out_HEV = layer.output.weight.unflatten(-1, heads_size).movedim(-2, -3).unsqueeze(-4)
    bias_HV = None
    if layer.value.bias is not None:
        bias_HV = layer.value.bias.unflatten(-1, heads_size).unsqueeze(-3)
    phi = find_activation(layer.kind, layer.activation)

    if layer.kind.value_network == "linear" and layer.kind.nonlinear:
        pairs = (*a_BQKH.shape[:-1], -1, -1)
        first = value_HVE.flatten(-3, -2).unsqueeze(-3).unsqueeze(-3).expand(pairs)
        last = einsum("...qkh,...hev->...qkehv", a_BQKH, out_HEV).flatten(-2)
        shift = None if bias_HV is None else bias_HV.flatten(-2).unsqueeze(-2).unsqueeze(-2)
        return ValueNetwork((first, last), shift, phi)
    if layer.kind.value_network == "linear":
        product_HEE = einsum("...hov,...hve->...hoe", out_HEV, value_HVE)
        weight = einsum("...qkh,...hoe->...qkoe", a_BQKH, product_HEE)
        if bias_HV is None:
            return ValueNetwork((weight,), None, phi)
        product_HE = einsum("...hov,...hv->...ho", out_HEV, bias_HV)
        return ValueNetwork((weight,), einsum("...qkh,...ho->...qko", a_BQKH, product_HE), phi)
    generated = [value_HVE] if layer.deep is None else [value_HVE, layer.deep.unsqueeze(-4)]
    weights = [einsum("...qkh,...hoi->...qkoi", a_BQKH, w) for w in [*generated, out_HEV]]
    shift = None if bias_HV is None else einsum("...qkh,...hv->...qkv", a_BQKH, bias_HV)
    return ValueNetwork(tuple(weights), shift, phi)
