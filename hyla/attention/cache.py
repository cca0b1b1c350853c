"""Keys and values of earlier tokens, for decoding.

Shapes: B leading axes, T tokens, H heads, D head size.
"""

import torch
from torch import Tensor

from hyla.errors import bad_value


class KeyValueCache:
    """Keys and values of the tokens seen so far, for step-by-step decoding with one layer.

    The memory for `max_tokens` is taken at the first step. Earlier steps are constants: gradients
    reach the tokens of the current step only.

    >>> from hyla import MultiHeadAttention
    >>> layer, cache = MultiHeadAttention(12, 3, causal=True), KeyValueCache(max_tokens=5)
    >>> x = torch.randn(2, 5, 12)
    >>> steps = [layer(x[:, i : i + 1], cache=cache) for i in range(5)]
    >>> torch.cat(steps, dim=1).allclose(layer(x), atol=1e-5)
    True
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 1:
            raise bad_value("max_tokens", max_tokens, "a whole number of at least 1")
        self.max_tokens = max_tokens
        self.tokens = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extended(self, k_BTHD: Tensor, v_BTHD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens with those of new ones, which count after `advance`."""
        end = self.tokens + k_BTHD.shape[-3]
        if end > self.max_tokens:
            raise bad_value("max_tokens", self.max_tokens, f"a cache for at least {end} tokens")
        if self._keys is None or self._values is None:
            self._keys, self._values = self._allocate(k_BTHD), self._allocate(v_BTHD)
        step, before = k_BTHD[..., :0, :, :], self._keys[..., :0, :, :]
        if (step.shape, step.dtype, step.device) != (before.shape, before.dtype, before.device):
            given = f"{step.dtype} {list(step.shape)} on {step.device}"
            expected = f"keys as in the earlier steps, {before.dtype} {list(before.shape)} on "
            raise bad_value("cache", given, f"{expected}{before.device}")
        return self._extend(self._keys, k_BTHD), self._extend(self._values, v_BTHD)

    def advance(self, tokens: int) -> None:
        """Counts the tokens last given to `extended` as seen."""
        self.tokens += tokens

    def _extend(self, memory_BTHD: Tensor, new_BTHD: Tensor) -> Tensor:
        end = self.tokens + new_BTHD.shape[-3]
        memory_BTHD[..., self.tokens : end, :, :] = new_BTHD.detach()
        if torch.is_grad_enabled():  # what autograd keeps must not be written to by the next step
            return torch.cat((memory_BTHD[..., : self.tokens, :, :], new_BTHD), dim=-3)
        return memory_BTHD[..., :end, :, :]

    def _allocate(self, x_BTHD: Tensor) -> Tensor:
        shape = (*x_BTHD.shape[:-3], self.max_tokens, *x_BTHD.shape[-2:])
        with torch.inference_mode(False):  # else no step outside of that mode could write to it
            return torch.empty(shape, dtype=x_BTHD.dtype, device=x_BTHD.device)
