"""Non-learned fuzzy logic baselines, which predict masked targets from the context alone.

Shapes: B leading axes, N examples of a sequence, M = N - 1 of the context, L variables.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from hyla.errors import bad_value, unknown_name
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, evaluate, r2, split_combinations

# The best on training functions among widths from 0.4 to 1.4 and ridges from 1e-4 to 0.1.
KERNEL_WIDTH, RIDGE = 0.6, 0.01
Functions = Iterable[Sequence[int]]  # combinations of terms
# The functions that a baseline considers, given a configuration and a seed.
FUNCTIONS: dict[str, Callable[[FuzzyLogicConfig, int], Functions]] = {
    "functions of training": lambda config, seed: split_combinations(config, "train", seed),
    "known terms": lambda config, seed: combinations(range(config.known_terms), config.terms),
    "all terms": lambda config, seed: combinations(range(2**config.variables), config.terms),
}
BASELINES = ("regression", *FUNCTIONS)
AT_ONCE = 2000  # instances per batch, to limit memory


def explained(
    reader: str, config: FuzzyLogicConfig, split: str, instances: range, seed: int = 0
) -> Tensor:
    """Compute the R2 of a baseline on each of these instances of a split."""
    if not instances:
        raise bad_value("instances", len(instances), "1 or more")
    batch = FuzzyLogic(config, seed).batch(split, instances)
    parts = [predict(reader, part, config, seed) for part in batch.inputs.split(AT_ONCE)]
    return r2(torch.cat(parts), batch)


def predict(reader: str, inputs: Tensor, config: FuzzyLogicConfig, seed: int) -> Tensor:
    """Predict the masked targets, `[B]`, of tokens `[B, N, L + 1]` with a baseline of `BASELINES`.

    "regression" knows no terms; "functions of training" considers the training functions of this
    seed, "known terms" and "all terms" all combinations of these terms.
    """
    if reader not in BASELINES:
        raise unknown_name("reader", reader, BASELINES)
    if inputs.shape[-1] != config.variables + 1:
        expected = f"tokens of {config.variables} variables and a target, [B, N, L + 1]"
        raise bad_value("inputs", f"{list(inputs.shape)}", expected)
    if reader == "regression":
        return kernel_regression(inputs)
    return best_fit(inputs, FUNCTIONS[reader](config, seed))


def kernel_regression(inputs: Tensor) -> Tensor:
    """Predict by Gaussian kernel ridge regression on the context, centred, in float64.

    >>> kernel_regression(torch.tensor([[[0.0, 0.5], [1.0, 0.5], [0.3, 0.0]]]))
    tensor([0.5000])
    """
    x_BNL, y_BM = _context(inputs.double())
    kernel_BNN = (-0.5 * (torch.cdist(x_BNL, x_BNL) / KERNEL_WIDTH).square()).exp()
    mean_B1 = y_BM.mean(dim=-1, keepdim=True)
    ridge_MM = RIDGE * torch.eye(y_BM.shape[-1], dtype=y_BM.dtype, device=y_BM.device)
    weight_BM = torch.linalg.solve(kernel_BNN[..., :-1, :-1] + ridge_MM, y_BM - mean_B1)
    predicted_B = (kernel_BNN[..., -1, :-1] * weight_BM).sum(dim=-1) + mean_B1.squeeze(-1)
    return predicted_B.to(inputs.dtype)


def best_fit(inputs: Tensor, functions: Functions) -> Tensor:
    """Predict with the function that has the least squared error on the context.

    Functions with equal errors are averaged, which minimises the expected squared error if all
    functions are equally probable. (On the task's own tokens, in their original precision, the true
    function has an error of exactly 0.)

    >>> tokens = torch.tensor([[[0.25, 0.25], [0.875, 0.0]]])  # f(0.25) = 0.25, f(0.875) = ?
    >>> best_fit(tokens, [(0,), (1,)])  # 1 - x or x
    tensor([0.8750])
    """
    x_BNL, y_BM = _context(inputs)
    functions = list(functions)
    if not functions:
        raise bad_value("functions", "none", "one or more combinations of terms")
    of_term = {
        term: evaluate(x_BNL, torch.tensor([term], device=inputs.device))
        for term in {term for function in functions for term in function}
    }
    least_B = torch.full_like(y_BM[..., 0], torch.inf)
    sum_B, count_B = torch.zeros_like(least_B), torch.zeros_like(least_B)
    for function in functions:
        value_BN = torch.stack([of_term[term] for term in function]).amax(dim=0)
        error_B = (value_BN[..., :-1] - y_BM).square().sum(dim=-1)
        better_B, alike_B = error_B < least_B, error_B == least_B
        sum_B = torch.where(better_B, value_BN[..., -1], sum_B + alike_B * value_BN[..., -1])
        count_B = torch.where(better_B, 1.0, count_B + alike_B)
        least_B = torch.minimum(least_B, error_B)
    return sum_B / count_B


def _context(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split into the inputs of all examples, `[B, N, L]`, and the context's targets, `[B, M]`."""
    if inputs.shape[-2] < 2:
        raise bad_value("inputs", f"{list(inputs.shape)}", "two or more examples, [B, N, L + 1]")
    return inputs[..., :-1], inputs[..., :-1, -1]
