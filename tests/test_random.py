"""Philox against its published vectors; what random numbers by address must leave unchanged."""

import shutil

import pytest
import torch
from torch import Tensor

from hyla import random


def words_of(text: str) -> list[Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(
    "counter, key, expected",
    [  # Philox4x32-10 of the known-answer file of Random123
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_published_known_answers(counter: str, key: str, expected: str) -> None:
    given = random.philox(words_of(counter), words_of(key))
    assert [f"{int(word):08x}" for word in given] == expected.split()


def test_words_are_philox_of_the_address() -> None:
    seed, index, block, stream = 5 + 7 * 2**32, 11 + 13 * 2**32, 17, 19
    given = random.words(torch.tensor(seed), torch.tensor(index), block, stream)
    counter, key = words_of("b d 11 13"), words_of("5 7")
    assert given.tolist() == [int(word) for word in random.philox(counter, key)]


def test_a_population_of_seeds_is_each_seed_alone() -> None:
    seeds, index = torch.tensor([[3], [2**40], [7]]), torch.tensor([5, 2**35, 0, 1])
    together = random.words(seeds, index, block=2, stream=1)
    for m, seed in enumerate(seeds.flatten()):
        for b, i in enumerate(index):
            assert together[m, b].equal(random.words(seed, i, block=2, stream=1))


def test_addresses_do_not_share_words() -> None:
    base = (1, 2, 3, 4)
    addresses = [base] + [
        tuple(value + (i == place) for i, value in enumerate(base)) for place in range(4)
    ]
    drawn = {
        tuple(random.words(torch.tensor(s), torch.tensor(i), b, t).tolist())
        for s, i, b, t in addresses
    }
    assert len(drawn) == 5


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_words_are_bit_identical() -> None:
    seeds, index = torch.tensor([[2**63 - 1], [5]]), torch.arange(2**32 - 50, 2**32 + 51)
    compiled = torch.compile(random.words, fullgraph=True)
    assert compiled(seeds, index, 3, 2**32 - 1).equal(random.words(seeds, index, 3, 2**32 - 1))


@pytest.mark.gpu
def test_words_on_the_gpu_and_in_a_captured_graph_are_bit_identical() -> None:
    seeds, index = torch.tensor([[2**63 - 1], [5]]), torch.arange(2**32 - 50, 2**32 + 51)
    exact = random.words(seeds, index, 3, 2)
    on_gpu = seeds.cuda(), index.cuda()
    assert random.words(*on_gpu, 3, 2).cpu().equal(exact)
    compiled = torch.compile(random.words, fullgraph=True)
    assert compiled(*on_gpu, 3, 2).cpu().equal(exact)
    block, stream = torch.tensor(3, device="cuda"), torch.tensor(2, device="cuda")
    random.words(*on_gpu, block, stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = random.words(*on_gpu, block, stream)
    on_gpu[1].copy_(index + 1000)
    graph.replay()
    assert captured.cpu().equal(random.words(seeds, index + 1000, 3, 2))


def test_integers_below_a_bound_are_uniform() -> None:
    count, bound = 70_000, 7
    word = random.words(torch.tensor(0), torch.arange(count // 4), 0, 0).flatten()
    counts = random.below(word, bound).bincount(minlength=bound)
    assert len(counts) == bound
    chi_square = ((counts - len(word) / bound) ** 2 / (len(word) / bound)).sum()
    assert chi_square < 22.5  # the 99.9 % quantile for 6 degrees of freedom


def test_uniform_numbers_are_in_the_unit_interval_with_its_moments() -> None:
    word = random.words(torch.tensor(1), torch.arange(25_000), 0, 0).flatten()
    numbers = random.uniform(word).double()
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    # Standard errors of mean and variance at 100,000 numbers: 9e-4 and 2.4e-4; four of each.
    assert abs(numbers.mean() - 1 / 2) < 3.7e-3
    assert abs(numbers.var() - 1 / 12) < 1e-3


def test_shuffles_are_permutations_and_differ_by_address() -> None:
    orders = [random.shuffled(50, seed, stream) for seed, stream in ((0, 0), (1, 0), (0, 1))]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert random.shuffled(50, 0, 0) == orders[0]
