"""The exact solver against a brute force that shares nothing with it, and its own calibration."""

from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product
from math import comb, factorial

import pytest
import torch

from hyla.tasks.sraven import RULES, Sraven, SravenConfig
from hyla.tasks.sraven.solver import solve, unambiguous_batch
from hyla.tasks.sraven.stats import statistics


def completion(rule: str, rows: list[list[int]], values: int, distinct: bool) -> int | None:
    """What a rule puts last, given all but the last symbol of the rows; None if it does not fit."""
    (a0, b0, c0), (a1, b1, c1), (a2, b2) = rows if len(rows) == 3 else (rows[0], *rows)
    if rule == "distribute three":
        symbols = {a0, b0, c0}
        if not distinct:
            fits = sorted((a0, b0, c0)) == sorted((a1, b1, c1)) and {a2, b2} <= symbols
            return min(symbols - {a2, b2} or symbols) if fits else None
        fits = len(symbols) == 3 and {a1, b1, c1} == symbols and a2 != b2 and {a2, b2} <= symbols
        return (symbols - {a2, b2}).pop() if fits else None
    if rule in ("addition", "subtraction"):
        sign = 1 if rule == "addition" else -1
        fits = (a0 + sign * b0 - c0) % values == 0 and (a1 + sign * b1 - c1) % values == 0
        return (a2 + sign * b2) % values if fits else None
    step = 0 if rule == "constant" else int(rule.split()[1])
    neighbours = [(a0, b0), (b0, c0), (a1, b1), (b1, c1), (a2, b2)]
    fits = all((right - left - step) % values == 0 for left, right in neighbours)
    return (b2 + step) % values if fits else None


def likelihood(rule: str, values: int, rows: int) -> Fraction:
    """The probability of so many rows of three symbols that a rule can produce."""
    if rule == "distribute three":
        return Fraction(1, comb(values, 3) * 6**rows)
    free = 2 if rule in ("addition", "subtraction") else 1
    return Fraction(1, values ** (rows * free))


def brute_force(
    panels: list[list[list[int]]],
    config: SravenConfig,
    combinations: list[tuple[int, ...]],
    rows: int,
    distinct: bool = True,
) -> tuple[int, dict[tuple[int, ...], Fraction]]:
    """Tries every rule combination and every order of every column, one at a time."""
    slots = range(config.features)
    orders = list(permutations(slots)) if config.permute else [tuple(slots)]
    found, weights = 0, {}
    for combination, by_column in product(combinations, product(orders, repeat=3)):
        answer, weight = [0] * config.features, Fraction(1, len(combinations) * len(orders) ** 3)
        for feature, rule in enumerate(combination):
            shown_at = [order.index(feature) for order in by_column]
            seen = [[row[c][shown_at[c]] for c in range(3)] for row in panels[:rows]]
            seen.append([panels[2][c][shown_at[c]] for c in range(2)])
            symbol = completion(RULES[rule], seen, config.values, distinct)
            if symbol is None:
                break
            answer[shown_at[2]] = symbol
            weight *= likelihood(RULES[rule], config.values, rows + 1)
        else:
            found += 1
            weights[tuple(answer)] = weights.get(tuple(answer), 0) + weight
    total = sum(weights.values())
    return found, {answer: weight / total for answer, weight in weights.items()}


@pytest.mark.parametrize(
    "features, values, count", [(2, 3, 40), (2, 4, 40), (2, 5, 40), (3, 3, 5), (3, 4, 5), (3, 5, 5)]
)
@pytest.mark.parametrize("permute", [True, False])
@pytest.mark.parametrize("split, rows", [("all", 2), ("train", 2), ("all", 1)])
def test_solver_agrees_with_brute_force(
    features: int, values: int, count: int, permute: bool, split: str, rows: int
) -> None:
    config = SravenConfig(features=features, values=values, permute=permute)
    task = Sraven(config, seed=1)
    batch = task.batch(split, count)
    combinations = list(map(tuple, task.combinations[split].tolist()))
    every = list(combinations_with_replacement(range(8), features))
    solution = solve(batch.panels, config, task.combinations[split], rows=rows)
    for n in range(count):
        panels = batch.panels[n].tolist()
        found, posterior = brute_force(panels, config, combinations, rows)
        mine = solution.answer_instance == n
        answers = map(tuple, solution.answers[mine].tolist())
        given = dict(zip(answers, solution.probability[mine].tolist(), strict=True))
        assert {a for a, p in given.items() if p > 0} == set(posterior)
        for answer, probability in posterior.items():
            assert given[answer] == pytest.approx(float(probability), rel=1e-9)
        assert solution.best_probability[n].item() == pytest.approx(float(max(posterior.values())))
        assert posterior[tuple(solution.best[n].tolist())] == max(posterior.values())
        if split == "all":
            assert solution.answer_count[n] == len(posterior)
            assert number_of_orders(solution, n, features if permute else 1) == found
        else:
            assert set(given) == set(brute_force(panels, config, every, rows)[1])


@pytest.mark.parametrize("features, values", [(1, 3), (2, 3), (2, 5)])
def test_so_does_one_that_takes_any_three_symbols(features: int, values: int) -> None:
    config = SravenConfig(features=features, values=values)
    panels = Sraven(config, seed=1).batch("all", 40).panels
    panels[20:, 1] = panels[20:, 0].flip(1)  # rows of the same symbols, in another order
    solution, strict = solve(panels, config, distinct=False), solve(panels, config)
    every = list(combinations_with_replacement(range(8), features))
    for n in range(len(panels)):
        answers = map(tuple, solution.answers[solution.answer_instance == n].tolist())
        assert set(answers) == set(brute_force(panels[n].tolist(), config, every, 2, False)[1])
    assert (solution.answer_count >= strict.answer_count).all()
    assert not solution.answer_count.equal(strict.answer_count)


def number_of_orders(solution: object, n: int, features: int) -> int:
    """How many (combination, orders) the solver's hypotheses stand for: those with equal rules
    can exchange their names."""
    total = 0
    for rules in solution.hypotheses.rules[solution.hypotheses.instance == n].tolist():
        repeats = 1
        for rule in set(rules):
            repeats *= factorial(rules.count(rule)) if features > 1 else 1
        total += repeats
    return total


@pytest.mark.parametrize("features, values", [(4, 8), (4, 4), (5, 7), (1, 3), (2, 1000), (7, 257)])
@pytest.mark.parametrize("permute", [True, False])
def test_the_truth_is_always_among_the_answers(features: int, values: int, permute: bool) -> None:
    config = SravenConfig(features=features, values=values, permute=permute)
    batch = Sraven(config, seed=0).batch("all", 500)
    solution = solve(batch.panels, config)
    right = (solution.answers == batch.targets[solution.answer_instance]).all(dim=-1)
    assert solution.answer_instance[right].tolist() == list(range(500))
    assert (solution.probability[right] > 0).all()
    sums = torch.zeros(500).double().index_add(0, solution.answer_instance, solution.probability)
    torch.testing.assert_close(sums, torch.ones(500).double())
    # The hypothesis that generated the instance is among those found.
    true_first = batch.orders.argsort(dim=-1)[:, 0].gather(1, batch.orders[:, 2])
    found = solution.hypotheses
    same = (found.first == true_first[found.instance]).all(dim=-1)
    same &= (found.rules == batch.target_rules[found.instance]).all(dim=-1)
    assert set(found.instance[same].tolist()) == set(range(500))


def test_every_hypothesis_explains_its_context() -> None:
    config = SravenConfig(values=4)
    batch = Sraven(config, seed=0).batch("all", 50)
    found = solve(batch.panels, config).hypotheses
    assert len(found.instance) > 50
    for n, first, second, rules, answers in zip(
        *(part.tolist() for part in (found.instance, found.first, found.second)),
        found.rules.tolist(),
        found.answers.tolist(),
        strict=True,
    ):
        assert sorted(first) == sorted(second) == [0, 1, 2, 3]
        panels = batch.panels[n].tolist()
        for slot in range(4):
            columns = (first[slot], second[slot], slot)
            rows = [[panels[r][c][columns[c]] for c in range(2 + (r < 2))] for r in range(3)]
            assert completion(RULES[rules[slot]], rows, 4, True) == answers[slot]


def test_ambiguity_by_hand() -> None:
    """(0, 0) can be constant or the sum of zeros: the same answer, so not ambiguous; with a 1 in
    the last row only addition fits; two rules that differ in the last row make it ambiguous."""
    config = SravenConfig(features=1, values=8)
    constant = [[[0], [0], [0]], [[0], [0], [0]], [[0], [0], [0]]]
    only_addition = [[[0], [0], [0]], [[0], [0], [0]], [[1], [1], [2]]]
    # Rows (2, 4, 6) and (1, 2, 3) are sums and (1, 2, 3) a progression, but (2, 4, 6) is another.
    # (0, 4, 4): sum and difference agree as 4 = -4 mod 8; a last row (1, 2) tells 3 from 7.
    ambiguous = [[[0], [4], [4]], [[0], [4], [4]], [[1], [2], [0]]]
    solution = solve(torch.tensor([constant, only_addition, ambiguous]), config)
    assert solution.answer_count.tolist()[0] == 1
    assert solution.answers[solution.answer_instance == 2].flatten().tolist() == [3, 7]
    assert solution.ambiguous.tolist() == [False, True, True]
    targets = torch.tensor([[0], [2], [3]])
    assert solution.ambiguous_every_feature(targets).tolist() == [False, True, True]


def test_ambiguity_in_every_feature_one_instance_at_a_time() -> None:
    config = SravenConfig(values=3)
    batch = Sraven(config).batch("all", 300)
    solution = solve(batch.panels, config)
    given = solution.ambiguous_every_feature(batch.targets)
    assert 0 < given.sum() < solution.ambiguous.sum()
    for n, target in enumerate(batch.targets.tolist()):
        answers = solution.answers[solution.answer_instance == n].tolist()
        exact = any(all(a != t for a, t in zip(answer, target, strict=True)) for answer in answers)
        assert given[n] == exact


def test_of_equally_probable_answers_the_first_is_best() -> None:
    config = SravenConfig(values=4)
    solution = solve(Sraven(config).batch("all", 2000).panels, config)
    ties = 0
    for n, best in enumerate(solution.best.tolist()):
        mine = solution.answer_instance == n
        probability, answers = solution.probability[mine], solution.answers[mine].tolist()
        equal = (probability >= (1 - 1e-9) * probability.max()).nonzero().flatten().tolist()
        ties += len(equal) > 1
        assert best == answers[equal[0]]
    assert ties > 100


def test_the_order_of_the_combinations_does_not_matter() -> None:
    task = Sraven(SravenConfig(values=4), seed=3)
    panels, combinations = task.batch("train", 100).panels, task.combinations["train"]
    turned = combinations[torch.randperm(len(combinations))].flip(-1)
    one, other = solve(panels, task.config, combinations), solve(panels, task.config, turned)
    torch.testing.assert_close(one.probability, other.probability)
    with pytest.raises(ValueError, match=r"combinations: expected \[combinations, 4\]"):
        solve(panels, task.config, combinations[:, :3])


@pytest.mark.parametrize("features", [2, 4])
def test_contexts_that_nothing_fits_do_not_disturb_the_others(features: int) -> None:
    config = SravenConfig(features=features)
    panels = Sraven(config).batch("all", 3).panels
    impossible = panels.clone()
    impossible[:, 0] = torch.tensor([0, 1, 7]).view(3, 1)
    impossible[:, 1] = torch.tensor([3, 3, 5]).view(3, 1)
    solution = solve(impossible, config)
    assert solution.answer_count.tolist() == [0, 0, 0]
    assert solution.best.eq(-1).all()
    mixed = solve(torch.cat((impossible, panels)), config)
    assert mixed.best[3:].equal(solve(panels, config).best)
    assert solve(panels[:0], config).best.shape == (0, features)


def test_a_context_without_hypotheses_has_no_answer() -> None:
    config = SravenConfig(features=1)
    solution = solve(torch.tensor([[[[0], [1], [7]], [[3], [3], [5]], [[0], [0], [0]]]]), config)
    assert solution.answer_count.tolist() == [0]
    assert solution.best.tolist() == [[-1]]
    assert solution.best_probability.tolist() == [0.0]


def test_the_last_panel_is_not_looked_at() -> None:
    config = SravenConfig()
    panels = Sraven(config).batch("all", 20).panels
    hidden = panels.clone()
    hidden[:, 2, 2] = -1
    assert solve(hidden, config).best.equal(solve(panels, config).best)


def test_the_order_of_the_slots_does_not_matter() -> None:
    config = SravenConfig(values=5)
    panels = Sraven(config).batch("all", 200).panels
    turned = panels.clone()
    for column, order in enumerate(([2, 0, 3, 1], [1, 3, 2, 0], [3, 2, 1, 0])):
        turned[:, :, column] = panels[:, :, column][..., order]
    one, other = solve(panels, config), solve(turned, config)
    torch.testing.assert_close(one.best_probability, other.best_probability)
    assert one.answer_count.equal(other.answer_count)


def test_chunks_do_not_matter() -> None:
    config = SravenConfig(values=4)
    panels = Sraven(config).batch("all", 100).panels
    whole, parts = solve(panels, config), solve(panels, config, chunk=7)
    for name in ("answer_instance", "answers", "probability", "best", "answer_count"):
        assert getattr(whole, name).equal(getattr(parts, name)), name
    assert whole.hypotheses.instance.equal(parts.hypotheses.instance)


def test_too_many_hypotheses_are_solved_in_parts_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SravenConfig(values=4)
    panels = Sraven(config).batch("all", 60).panels
    whole = solve(panels, config)
    monkeypatch.setattr("hyla.tasks.sraven.solver.MAX_BYTES", 50_000)
    parts = solve(panels, config)
    assert parts.answers.equal(whole.answers)
    assert parts.answer_instance.equal(whole.answer_instance)
    with pytest.raises(ValueError, match="panels: expected a context that fewer than"):
        solve(torch.zeros(3, 3, 3, 4, dtype=torch.int64), config)


def test_settings_without_unambiguous_instances_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyla.tasks.sraven.solver.MAX_ATTEMPTS", 5)
    task = Sraven(SravenConfig(features=6, values=3), seed=0)
    with pytest.raises(ValueError, match="features, values: expected settings with an unambiguous"):
        unambiguous_batch(task, "all", 2)


@pytest.mark.parametrize("values, split", [(8, "all"), (8, "train"), (8, "held_out"), (4, "all")])
def test_the_posterior_is_calibrated(values: int, split: str) -> None:
    """Mean top probability equals accuracy; and so it is at each level of confidence."""
    config = SravenConfig(values=values)
    task = Sraven(config, seed=7)
    batch = task.batch(split, 20_000)
    solution = solve(batch.panels, config, task.combinations[split])
    right = (solution.best == batch.targets).all(dim=-1).double()
    confidence = solution.best_probability
    for low, high in ((0.0, 1.1), (0.0, 0.6), (0.6, 0.9), (0.9, 1.1)):
        chosen = (confidence >= low) & (confidence < high)
        expected = confidence[chosen].mean()
        error = (confidence * (1 - confidence))[chosen].sum().sqrt() / chosen.sum()
        assert abs(right[chosen].mean() - expected) < 4 * error + 1e-9


def test_a_wrong_prior_is_not_calibrated() -> None:
    """The control: held-out instances under the prior of the training split come out wrong."""
    task = Sraven(SravenConfig(values=4), seed=7)
    batch = task.batch("held_out", 5_000)
    solution = solve(batch.panels, task.config, task.combinations["train"])
    right = (solution.best == batch.targets).all(dim=-1).double().mean()
    assert right < solution.best_probability.mean() - 0.05  # seven standard errors


def test_statistics_are_those_of_the_solution() -> None:
    config = SravenConfig(values=4)
    task = Sraven(config, seed=3)
    batch = task.batch("train", 3000)
    solution = solve(batch.panels, config, task.combinations["train"])
    done: list[int] = []
    given = statistics(config, "train", 3000, seed=3, progress=done.append)
    fraction = solution.ambiguous.double().mean().item()
    assert sum(done) == 3000
    assert given.ambiguous.value == pytest.approx(fraction)
    assert given.top_posterior.value == pytest.approx(solution.best_probability.mean().item())
    error = (fraction * (1 - fraction) / 3000) ** 0.5
    assert given.ambiguous.standard_error == pytest.approx(error)
    loose = solve(batch.panels, config, distinct=False).ambiguous_every_feature(batch.targets)
    loosely = loose.double().mean().item()
    assert given.ambiguous_every_feature_loose.value == pytest.approx(loosely)
    assert given.ambiguous_every_feature.value < loosely < given.ambiguous.value
    assert abs(given.ceiling.value - given.top_posterior.value) < 4 * given.ceiling.standard_error
    marginal = solution.feature_probability(4)
    torch.testing.assert_close(marginal.sum(dim=-1), torch.ones_like(marginal[..., 0]))
    guessed = marginal.argmax(dim=-1) == batch.targets
    rule, found = 6, given.feature_accuracy_by_rule["subtraction"]
    assert RULES[rule] == "subtraction"
    right = guessed[batch.target_rules == rule].double().mean().item()
    assert found.value == pytest.approx(right)
    # What is said of a feature is calibrated, and by feature no answer as a whole does better.
    said = marginal.amax(dim=-1).mean().item()
    assert abs(guessed.double().mean().item() - said) < 0.02
    assert guessed.double().mean() >= (solution.best == batch.targets).double().mean() - 0.01
    wider = statistics(config, "train", 3000, prior="all", seed=3)
    right = (solve(batch.panels, config).best == batch.targets).all(dim=-1).double().mean()
    assert wider.ceiling.value == pytest.approx(right.item())
    none = statistics(config, "held_out", 3000, prior="train", seed=3)  # often nothing fits
    some = statistics(config, "held_out", 3000, seed=3)
    for rule, estimate in none.feature_accuracy_by_rule.items():
        assert estimate.value < some.feature_accuracy_by_rule[rule].value
    with pytest.raises(ValueError, match="prior: unknown name 'held-out'"):
        statistics(config, "train", prior="held-out")


def test_unambiguous_instances_by_address() -> None:
    task = Sraven(SravenConfig(values=4), seed=2)
    batch = unambiguous_batch(task, "held_out", 300)
    assert not solve(batch.panels, task.config).ambiguous.any()
    assert (
        unambiguous_batch(task, "held_out", torch.tensor([250])).panels[0].equal(batch.panels[250])
    )
    plain = task.batch("held_out", 300)
    clear = ~solve(plain.panels, task.config).ambiguous
    assert 0 < clear.sum() < 300
    assert batch.panels[clear].equal(plain.panels[clear])
    allowed = set(map(tuple, task.combinations["held_out"].tolist()))
    assert set(map(tuple, batch.rules.tolist())) <= allowed


@pytest.mark.gpu
def test_the_gpu_solves_as_the_cpu() -> None:
    config = SravenConfig(values=5)
    panels = Sraven(config).batch("all", 3000).panels
    exact, given = solve(panels, config), solve(panels.cuda(), config)
    assert given.answers.cpu().equal(exact.answers)
    torch.testing.assert_close(given.probability.cpu(), exact.probability)


def test_malformed_instances_say_where() -> None:
    config = SravenConfig()
    panels = Sraven(config).batch("all", 3).panels
    with pytest.raises(
        ValueError, match=r"panels: expected \[instances, 3, 3, 4\].*got \[3, 3, 4\]"
    ):
        solve(panels[0], config)
    with pytest.raises(ValueError, match="panels: expected symbols as int64"):
        solve(panels.float(), config)
    with pytest.raises(ValueError, match="rows: expected 1 or 2, got 3"):
        solve(panels, config, rows=3)
    panels[2, 1, 0, 3] = 8
    with pytest.raises(
        ValueError,
        match=r"panels\[2\], row 1, column 0, feature 3: expected a symbol from 0 to 7, got 8",
    ):
        solve(panels, config)
