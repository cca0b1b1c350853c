"""From trainings to rows: what is chosen, what is missing, what a row shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_run
from stores import SETTINGS, made, store

from hyla.errors import bad_value
from hyla.experiments.rows import choose, chosen_trainings, missing, rows, trainings_left
from hyla.experiments.spec import HELD_OUT, Analysis, Plan, Point
from hyla.train import Member
from hyla.train.store import Analysed, Entry, Search, Store, Trained

FIRST, OTHER = SETTINGS[0], SETTINGS[1]
POINT = Point({"kind": "hyla"}, tiny_run("sraven", members=SETTINGS))


def grid_of(costs: dict[Member, list[float]], **options: Any) -> list[Trained]:
    """Trainings of all settings, their validation losses by seed."""
    return [
        made(POINT, setting, seed, validation=cost, held_out=cost / 10, **options)
        for setting, each in costs.items()
        for seed, cost in enumerate(each)
    ]


def test_a_search_comes_first_and_then_the_other_seeds() -> None:
    plan, nothing = Plan(), store()
    assert missing(POINT, plan, nothing) == list(SETTINGS)
    assert trainings_left(POINT, plan, nothing) == len(SETTINGS) + 2
    searched = store(*grid_of({s: [1.0 + i] for i, s in enumerate(SETTINGS)}))
    assert missing(POINT, plan, searched) == [replace(FIRST, seed=s) for s in (1, 2)]
    assert trainings_left(POINT, plan, searched) == 2


def test_more_seeds_are_added_to_those_that_are_there() -> None:
    three = store(*grid_of({s: [1.0 + i] * 3 for i, s in enumerate(SETTINGS)}))
    assert not missing(POINT, Plan(), three)
    wanted = missing(POINT, Plan(seeds=12, search_seeds=3), three)
    assert wanted == [replace(FIRST, seed=seed) for seed in range(3, 12)]
    (row,) = rows(POINT, Plan(seeds=2), three)
    assert row.seeds == (0, 1)


def test_a_plan_without_seeds_shows_all_that_there_are() -> None:
    found = grid_of({s: [1.0 + i] * 3 for i, s in enumerate(SETTINGS)})
    more = [made(POINT, FIRST, seed) for seed in (3, 4)]
    (row,) = rows(POINT, Plan(), store(*found, *more))
    assert row.seeds == (0, 1, 2, 3, 4)


def test_the_least_mean_validation_loss_is_chosen() -> None:
    costs = {s: [5.0, 5.0, 5.0] for s in SETTINGS} | {FIRST: [1.0, 9.0, 1.0], OTHER: [2.0] * 3}
    assert choose(POINT, Plan(), store(*grid_of(costs))) == (OTHER, Search(4, 3))
    by_held_out = Plan(choose_by=HELD_OUT)
    found = choose(POINT, by_held_out, store(*grid_of(costs | {FIRST: [7.0] * 3})))
    assert found == (FIRST, Search(4, 3))


def test_the_choice_uses_only_seeds_that_every_setting_has() -> None:
    costs = {s: [2.0] for s in SETTINGS} | {FIRST: [1.0, 9.0, 9.0]}
    assert choose(POINT, Plan(), store(*grid_of(costs))) == (FIRST, Search(4, 1))
    assert choose(POINT, Plan(search_seeds=2), store(*grid_of(costs))) is None


def test_what_is_reported_plays_no_part_in_the_choice() -> None:
    costs = {s: [2.0] * 3 for s in SETTINGS} | {FIRST: [1.0] * 3}
    low = {"held_out": {"accuracy": 0.01}}
    found = [
        replace(one, evaluation=one.evaluation | low) if one.evaluation["validation"]["loss"] < 2
        else one for one in grid_of(costs)
    ]  # fmt: skip
    chosen = choose(POINT, Plan(), store(*found))
    assert chosen is not None
    assert chosen[0] == FIRST


def test_a_setting_that_diverges_less_is_chosen() -> None:
    costs = {s: [3.0, 3.0] for s in SETTINGS[1:]}
    diverged = [made(POINT, FIRST, 0, diverged_at=7), made(POINT, FIRST, 1, validation=0.1)]
    chosen = choose(POINT, Plan(seeds=2), store(*grid_of(costs), *diverged))
    assert chosen is not None
    assert chosen[0] == OTHER


def test_diverged_seeds_have_no_value() -> None:
    plan = Plan(setting=FIRST)
    found = [made(POINT, FIRST, 0, held_out=0.2), made(POINT, FIRST, 1, diverged_at=3)]
    (row,) = rows(POINT, plan, store(*found))
    assert row.main.per_seed == (20.0, None)
    assert row.main.mean == 20.0
    assert row.main.standard_error is None


def test_a_recorded_choice_stands_until_a_search_over_more_seeds() -> None:
    recorded = [made(POINT, OTHER, seed, chosen=Search(4, 2)) for seed in range(3)]
    assert choose(POINT, Plan(), store(*recorded)) == (OTHER, Search(4, 2))
    assert not missing(POINT, Plan(), store(*recorded))
    best = {s: 1.0 if s == FIRST else 2.0 for s in SETTINGS}
    on_one_seed = grid_of({s: [cost] for s, cost in best.items() if s != OTHER})
    assert choose(POINT, Plan(), store(*recorded, *on_one_seed)) == (OTHER, Search(4, 2))
    on_three = grid_of({s: [cost] * 3 for s, cost in best.items() if s != OTHER})
    assert choose(POINT, Plan(), store(*recorded, *on_three)) == (FIRST, Search(4, 3))
    wider = Plan(search_seeds=3)
    assert choose(POINT, wider, store(*recorded)) is None
    assert len(missing(POINT, wider, store(*recorded))) == 9


def test_a_given_setting_needs_no_search() -> None:
    outside = Member(0, 0.5, 0.5, 3)
    plan = Plan(setting=outside)
    assert missing(POINT, plan, store()) == [replace(outside, seed=seed) for seed in range(3)]
    one_setting = replace(POINT, config=tiny_run("sraven", members=SETTINGS[:1]))
    assert len(missing(one_setting, Plan(), store())) == 3
    assert rows(one_setting, Plan(), store(made(one_setting, FIRST, 0)))[0].search is None


def test_a_precision_that_is_asked_for_is_demanded() -> None:
    found = store(*grid_of({s: [1.0 + i] * 3 for i, s in enumerate(SETTINGS)}))
    assert not missing(POINT, Plan(), found)
    assert len(missing(POINT, Plan(precision="fp32"), found)) == len(SETTINGS)
    exact = store(*grid_of({s: [1.0] for s in SETTINGS}, precision="fp64"))
    assert len(missing(POINT, Plan(), exact)) == len(SETTINGS)
    mixed = [made(POINT, FIRST, 0), made(POINT, FIRST, 1, precision="bf16")]
    (row,) = rows(POINT, Plan(setting=FIRST), store(*mixed))
    assert row.precisions == ["tf32", "bf16"]


def test_rows_are_a_pure_function() -> None:
    found = grid_of({s: [1.0 + i] * 3 for i, s in enumerate(SETTINGS)})
    ours = [rows(POINT, Plan(), store(*each)) for each in (found, found[::-1])]
    assert ours[0] == ours[1]


@pytest.mark.parametrize(
    "options",
    [{"seeds": 0}, {"search_seeds": 0}, {"seeds": 2, "search_seeds": 3}, {"choose_by": "luck"}],
)
def test_a_plan_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)) if len(options) == 1 else "search"):
        Plan(**options)


def nothing(*arguments: object, **settings: object) -> list[Entry]:
    raise bad_value("compute", "a call", "none")


def test_analyses_of_weights_make_rows_over_seeds() -> None:
    analysis = Analysis("codes", "weights", {"instances": 3}, nothing)
    point = replace(POINT, analyses=(analysis,))
    ones = [made(point, FIRST, seed) for seed in range(3)]
    analysed = [
        Analysed(one.key, "codes", {"instances": n}, (
            Entry({"layer": 0}, {"F1": 10.0 * seed + n}), Entry({"layer": 1}, {"F1": 50.0}),
        ), frozen=seed == 1)
        for seed, one in enumerate(ones[:2])
        for n in (3, 5)
    ]  # fmt: skip
    found = rows(point, Plan(setting=FIRST), Store(ones, (), analysed))
    assert [dict(row.axes) for row in found] == [
        {"kind": "hyla", "layer": 0}, {"kind": "hyla", "layer": 1},
    ]  # fmt: skip
    assert found[0].main.per_seed == (3.0, 13.0)
    assert found[0].seeds == (0, 1)
    assert found[0].frozen
    assert chosen_trainings(point, Plan(setting=FIRST), Store(ones, (), ())).keys() == {0, 1, 2}


def test_local_trainings_are_told_from_published_ones() -> None:
    ones = [made(POINT, FIRST, 0), made(POINT, FIRST, 1, path=Path("runs/x"))]
    (row,) = rows(POINT, Plan(setting=FIRST), store(ones[0], local=(ones[1],)))
    assert row.is_local
    (row,) = rows(POINT, Plan(setting=FIRST), store(ones[0]))
    assert not row.is_local
