"""Counter-based random numbers: a pure function of an address, the same on every device.

Philox4x32-10 (Salmon et al., 2011) in torch integer operations. An address is a seed (the key) with
an index, a block and a stream (the counter). Each address gives four 32-bit words, held in int64.
No operation overflows, so the words are bit-identical on CPU and GPU, compiled or not. There is no
state, so replaying a CUDA graph does not repeat numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply Philox4x32-10 to counters of four words under keys of two words; all broadcast.

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
    """Return the high and the low word of word * constant, for a constant above 3 * 2^30.

    Multiplying by constant - 2^32 instead keeps the product within 62 bits: the low word is the
    same, and the high word is smaller by `word`.
    """
    product = word * (constant - 2**32)
    return (product >> 32) + word, product & MASK


def words(seed: Tensor, index: Tensor, block: int | Tensor, stream: int | Tensor) -> Tensor:
    """Return four random words `[..., 4]` for each address; the arguments broadcast.

    Seeds and indices may be any int64; blocks and streams range from 0 to 2^32 - 1.

    >>> words(torch.tensor([[7], [8]]), torch.arange(3), block=0, stream=1).shape
    torch.Size([2, 3, 4])
    """
    seed, index = seed.to(torch.int64), index.to(torch.int64)
    # The masks also keep torch.compile from using 32-bit arithmetic for an index from arange.
    counter = (index & MASK, (index >> 32) & MASK, _word(block, index), _word(stream, index))
    result = philox(counter, (seed & MASK, (seed >> 32) & MASK))
    return torch.stack(torch.broadcast_tensors(*result), dim=-1)


def _word(number: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(number, int):  # no copy from the host, which a CUDA graph could not capture
        number = torch.full((), number, dtype=torch.int64, device=like.device)
    return number.to(torch.int64) & MASK


def below(word: Tensor, bound: int | Tensor) -> Tensor:
    """Map random words to integers 0 .. bound - 1, for a bound of at most 2^31.

    Relative differences in probability are below bound / 2^32.

    >>> below(torch.tensor([0, 2**31, 2**32 - 1]), 10).tolist()
    [0, 5, 9]
    """
    return (word * bound) >> 32


def uniform(word: Tensor) -> Tensor:
    """Map random words to float32 numbers in [0, 1), multiples of 2^-24.

    >>> uniform(torch.tensor([0, 2**31])).tolist()
    [0.0, 0.5]
    """
    return (word >> 8).to(torch.float32) * 2.0**-24


def shuffled(count: int, seed: int, stream: int) -> list[int]:
    """Return 0 .. count - 1 in the random order given by a seed and a stream.

    >>> sorted(shuffled(5, seed=3, stream=9))
    [0, 1, 2, 3, 4]
    """
    index = torch.arange(count)
    keys = words(torch.tensor(seed), index, block=0, stream=stream)
    return sorted(range(count), key=keys.tolist().__getitem__)
