"""T5 buckets against values worked by hand; what rotary embeddings must leave unchanged."""

import math

import pytest
import torch

from hyla.attention.positions import RelativeBias, rotate, t5_buckets


def test_buckets_worked_by_hand() -> None:
    # 8 buckets up to distance 16: 0..3 exactly, then 4 steps that double every two:
    # 4 * log2(d / 4) / 2 = 2 log2(d / 4) is 0 at 4, 1 from 4 sqrt 2 = 5.66, 2 from 8, 3 from 11.3.
    assert t5_buckets(8, 16) == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    # 4 buckets up to distance 4: 2 log2(d / 2) is 0 at 2, 1.17 at 3; the last stays the last.
    assert t5_buckets(4, 4) == [0, 1, 2, 3, 3]
    # An odd number: 2 exact, 3 * log(d / 2) / log(2.5) is 0 at 2, 1.33 at 3, 2.27 at 4.
    assert t5_buckets(5, 5) == [0, 1, 2, 3, 4, 4]


def test_buckets_at_exact_powers_do_not_round_down() -> None:
    # 32 buckets up to 128, T5's own setting: 16 * log(d / 16) / log(8), so 2 at 16 * 8^(2/16) ...
    # and exactly 16 * j / 3 at d = 16 * 2^j: 5.33 at 32, 10.67 at 64.
    buckets = t5_buckets(32, 128)
    assert (buckets[15], buckets[16], buckets[32], buckets[64], buckets[128]) == (
        15,
        16,
        21,
        26,
        31,
    )
    # Where the logarithm is a whole number, the distance opens the next bucket: 4 log4(d / 4).
    assert [t5_buckets(8, 64)[4 * 2**j] for j in range(5)] == [4, 5, 6, 7, 7]


@pytest.mark.parametrize("buckets, max_distance", [(36, 36), (97, 97), (32, 128), (7, 1000)])
def test_buckets_are_monotone_and_follow_the_formula(buckets: int, max_distance: int) -> None:
    table, exact = t5_buckets(buckets, max_distance), buckets // 2
    assert table[:exact] == list(range(exact))
    assert table == sorted(table)
    assert table[-1] == buckets - 1
    for distance in range(exact, max_distance):
        real = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
        assert abs(table[distance] - exact - real) < 1 + 1e-9
        assert table[distance] - exact <= real + 1e-9


def test_bias_is_unidirectional_and_shared_by_distance() -> None:
    bias = RelativeBias(heads=3, buckets=6)(7, 7)[0]
    for distance in range(7):
        diagonal = bias.diagonal(-distance, dim1=1, dim2=2)
        assert diagonal.eq(diagonal[:, :1]).all()
    later_keys = bias[:, *torch.triu_indices(7, 7)]
    assert later_keys.eq(bias[:, :1, 0]).all()


def test_bias_beyond_the_largest_distance_is_the_last_bucket() -> None:
    relative = RelativeBias(heads=2, buckets=4)
    far = relative(1, 1, start=1000)
    assert far.flatten().equal(relative.table[:, -1])


@pytest.mark.parametrize("queries, keys, start", [(5, 7, 0), (7, 5, 0), (1, 11, 10), (3, 13, 10)])
def test_bias_by_shifted_rows_equals_indexing(queries: int, keys: int, start: int) -> None:
    relative = RelativeBias(heads=3, buckets=6, max_distance=9, dtype=torch.float64)
    indexed = relative.at(torch.arange(start, start + queries), torch.arange(keys))
    shifted = relative(queries, keys, start)
    assert shifted.equal(indexed)
    weights = torch.randn_like(indexed)
    gradients = [
        torch.autograd.grad((bias * weights).sum(), relative.table)[0]
        for bias in (shifted, indexed)
    ]
    torch.testing.assert_close(*gradients)


def test_bias_table_is_initialised_by_the_number_of_buckets() -> None:
    assert abs(RelativeBias(heads=101, buckets=97).table.std() * 97**0.5 - 1) < 0.03


def test_rotary_scores_depend_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, 5, 3, 8, dtype=torch.float64)
    positions = torch.tensor([0, 3, 7, 11, 13])

    def scores(shift: int) -> torch.Tensor:
        rotated = (rotate(x, positions + shift) for x in (q, k))
        return torch.einsum("bqhd,bkhd->bhqk", *rotated)

    torch.testing.assert_close(scores(0), scores(1009), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(scores(0), torch.einsum("bqhd,bkhd->bhqk", q, k))


def test_rotary_by_hand() -> None:
    # Head size 4, base 100: pairs (0, 2) and (1, 3) turn by position and position / 10.
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64).view(1, 1, 1, 4)
    turned = rotate(x, torch.tensor([2]), base=100.0).flatten().tolist()
    assert turned == pytest.approx([math.cos(2), -math.sin(0.2), math.sin(2), math.cos(0.2)])


def test_bad_positions_name_the_argument() -> None:
    with pytest.raises(ValueError, match="head_size: expected an even number"):
        rotate(torch.ones(1, 1, 1, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="buckets: expected a whole number of at least 2, got 1"):
        RelativeBias(heads=2, buckets=1)
    with pytest.raises(ValueError, match="max_distance: expected more than half the buckets, 4"):
        RelativeBias(heads=2, buckets=8, max_distance=4)
