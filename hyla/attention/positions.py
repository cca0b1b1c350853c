"""Position encodings: T5's relative position bias and rotary embeddings.

Shapes: P the population, if any; H heads, Q queries, K keys, N buckets, L = Q + K.
"""

import torch
from torch import Tensor, einsum, nn

from hyla.errors import bad_value


def t5_buckets(buckets: int, max_distance: int) -> list[int]:
    """Return the bucket of every distance 0 .. max_distance from a query back to a key.

    The first half of the buckets holds one distance each; the rest grow logarithmically up to
    `max_distance`, and the last one holds all larger distances. Computed with integers, so that
    bucket boundaries do not depend on the rounding of a logarithm.

    >>> t5_buckets(8, 16)
    [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    """
    if buckets < 2:
        raise bad_value("buckets", buckets, "a whole number of at least 2")
    exact = buckets // 2
    if max_distance <= exact:
        raise bad_value("max_distance", max_distance, f"more than half the buckets, {exact}")
    rest = buckets - exact
    table = list(range(exact))
    step = 0
    for distance in range(exact, max_distance + 1):
        # step = floor(rest * log(distance / exact) / log(max_distance / exact))
        while (
            step < rest - 1
            and distance**rest * exact ** (step + 1) >= max_distance ** (step + 1) * exact**rest
        ):
            step += 1
        table.append(exact + step)
    return table


class RelativeBias(nn.Module):
    """T5's relative position bias: one learned number per head and distance bucket.

    Unidirectional: keys after the query share the bucket of distance 0.

    >>> RelativeBias(heads=3, buckets=8)(queries=5, keys=7).shape
    torch.Size([1, 3, 5, 7])
    """

    bucket_of_distance: Tensor

    def __init__(
        self,
        heads: int,
        buckets: int,
        max_distance: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_distance = buckets if max_distance is None else max_distance
        bucket = torch.tensor(t5_buckets(buckets, self.max_distance), device=device)
        # Persistent, so that a model created on the meta device gets it from its state dict.
        self.register_buffer("bucket_of_distance", bucket)
        self.table = nn.Parameter(torch.empty(heads, buckets, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        buckets = self.table.shape[-1]
        nn.init.normal_(self.table, std=buckets**-0.5)
        # After `to_empty`, a model from the meta device has uninitialised buffers.
        self.bucket_of_distance.copy_(torch.tensor(t5_buckets(buckets, self.max_distance)))

    def forward(self, queries: int, keys: int, start: int = 0) -> Tensor:
        """Return the bias `[1, H, Q, K]` of queries at start, start + 1, ... and keys at 0, 1, ...

        A population axis comes first. The bias depends only on q - k, so it is one row of
        `queries + keys` numbers, shifted by one for each query. Unlike indexing with q - k, this
        needs no scatter-add in the backward.
        """
        device, length = self.table.device, queries + keys
        distance_L = torch.cat(
            (
                start - torch.arange(keys, device=device),
                start + torch.arange(queries, 0, -1, device=device),
            )
        )
        # Not F.one_hot, which reads the values and so fails under vmap.
        buckets_N = torch.arange(self.table.shape[-1], device=device)
        one_hot_LN = self._bucket(distance_L).unsqueeze(-1) == buckets_N
        row_PHL = einsum("...hn,ln->...hl", self.table, one_hot_LN.to(self.table.dtype))
        rows = row_PHL.unsqueeze(-2).expand(*row_PHL.shape[:-1], queries, length).flatten(-2)
        # Reshaped to rows of length - 1, entry (q, k) is entry k - q of the row (modulo length).
        shift = length - 1 if queries else keys  # without queries, rows are empty
        shifted = rows[..., : queries * shift].unflatten(-1, (queries, shift))
        return shifted[..., :keys].unsqueeze(-4)

    def at(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of given positions, in the same layout."""
        distance_QK = query_positions[:, None] - key_positions
        return self.table[..., self._bucket(distance_QK)].unsqueeze(-4)

    def _bucket(self, distance: Tensor) -> Tensor:
        return self.bucket_of_distance[distance.clamp(0, self.max_distance)]


def rotate(x_BTHD: Tensor, positions_T: Tensor, base: float = 10_000.0) -> Tensor:
    """Apply rotary embeddings: rotate pairs (d, d + D/2) of each head by position * base^(-2d/D).

    Scores of rotated queries and keys depend only on the difference of their positions.

    >>> x = torch.randn(1, 1, 1, 6)
    >>> rotate(x, torch.tensor([0])).equal(x)
    True
    """
    size = x_BTHD.shape[-1]
    if size % 2:
        raise bad_value("head_size", size, "an even number for rotary embeddings")
    wide = torch.promote_types(x_BTHD.dtype, torch.float32)
    exponent = torch.arange(0, size, 2, device=x_BTHD.device, dtype=wide) / size
    angle_T1D = (positions_T.to(wide)[:, None] * base**-exponent)[:, None]
    cos, sin = angle_T1D.cos(), angle_T1D.sin()
    first, second = x_BTHD.to(wide).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x_BTHD.dtype)
