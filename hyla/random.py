"""Counter-based random numbers: a pure function of an address, the same on every device.

Philox4x32-10 (Salmon et al., 2011) in torch integer operations. An address is a seed (the key), and
an index, a block and a stream (the counter); each gives four words of 32 bits, held in int64. No
operation overflows, so the words are bit-identical on CPU and GPU, compiled or not, and there is no
state that a captured CUDA graph could repeat.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four words for each counter of four words under a key of two, broadcast.

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [f"{int(word):08x}" for word in philox([zero] * 4, [zero] * 2)]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def _multiply(word: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of word * constant, for a constant above 3 * 2^30.

    Multiplied by constant - 2^32 instead, the product stays within 62 bits; its low word is the
    same, and its high word is less by `word`.
    """
    product = word * (constant - 2**32)
    return (product >> 32) + word, product & MASK


def words(seed: Tensor, index: Tensor, block: int | Tensor, stream: int | Tensor) -> Tensor:
    """Four random words `[..., 4]` for each address; the arguments broadcast.

    Seeds and indices are any int64, taken as 64 bits; blocks and streams from 0 to 2^32 - 1.

    >>> words(torch.tensor([[7], [8]]), torch.arange(3), block=0, stream=1).shape
    torch.Size([2, 3, 4])
    """
    seed, index = seed.to(torch.int64), index.to(torch.int64)
    # The masks also keep torch.compile from multiplying a range as if it were 32-bit addresses.
    counter = (index & MASK, (index >> 32) & MASK, _word(block, index), _word(stream, index))
    result = philox(counter, (seed & MASK, (seed >> 32) & MASK))
    return torch.stack(torch.broadcast_tensors(*result), dim=-1)


def _word(number: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(number, int):  # filled, not copied from the host: a CUDA graph can capture it
        number = torch.full((), number, dtype=torch.int64, device=like.device)
    return number.to(torch.int64) & MASK


def below(word: Tensor, bound: int | Tensor) -> Tensor:
    """Integers 0 .. bound - 1 from random words; probabilities differ by less than bound / 2^32.

    The bound may be at most 2^31.

    >>> below(torch.tensor([0, 2**31, 2**32 - 1]), 10).tolist()
    [0, 5, 9]
    """
    return (word * bound) >> 32


def uniform(word: Tensor) -> Tensor:
    """float32 numbers in [0, 1), multiples of 2^-24, from random words.

    >>> uniform(torch.tensor([0, 2**31])).tolist()
    [0.0, 0.5]
    """
    return (word >> 8).to(torch.float32) * 2.0**-24


def shuffled(count: int, seed: int, stream: int) -> list[int]:
    """The numbers 0 .. count - 1 in the random order that belongs to an address.

    >>> sorted(shuffled(5, seed=3, stream=9))
    [0, 1, 2, 3, 4]
    """
    index = torch.arange(count)
    keys = words(torch.tensor(seed), index, block=0, stream=stream)
    return sorted(range(count), key=keys.tolist().__getitem__)
