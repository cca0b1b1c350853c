"""What can be read from the context of a fuzzy logic instance without a trained model.

Each reader takes the tokens of instances, `[B, N, L + 1]`, and predicts the masked target, `[B]`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from hyla.tasks.fuzzy_logic import FuzzyLogicConfig, evaluate, split_combinations

# Width of the Gaussian kernel and ridge: the best of a few for functions of training.
KERNEL_WIDTH, RIDGE = 0.6, 0.01
Reader = Callable[[Tensor], Tensor]


def readers(config: FuzzyLogicConfig, seed: int) -> dict[str, Reader]:
    """The readers by name, from the one that knows nothing to the one that knows the task.

    "regression" knows nothing of terms, "functions of training" those of this seed only, "known
    terms" and "all terms" all combinations of these. The last is the ceiling.
    """
    known, every = range(config.known_terms), range(2**config.variables)
    return {
        "regression": kernel_regression,
        "functions of training": partial(
            best_fit, functions=split_combinations(config, "train", seed)
        ),
        "known terms": partial(best_fit, functions=list(combinations(known, config.terms))),
        "all terms": partial(best_fit, functions=list(combinations(every, config.terms))),
    }


def kernel_regression(inputs: Tensor) -> Tensor:
    """Kernel ridge regression on the context, around its mean.

    >>> kernel_regression(torch.tensor([[[0.0, 0.5], [1.0, 0.5], [0.3, 0.0]]]))
    tensor([0.5000])
    """
    x_BNL, y_BM = _context(inputs.double())
    distance_BNN = torch.cdist(x_BNL, x_BNL)
    kernel_BNN = (-0.5 * (distance_BNN / KERNEL_WIDTH).square()).exp()
    mean_B1 = y_BM.mean(dim=-1, keepdim=True)
    ridge_MM = RIDGE * torch.eye(y_BM.shape[-1], dtype=y_BM.dtype, device=y_BM.device)
    weight_BM = torch.linalg.solve(kernel_BNN[..., :-1, :-1] + ridge_MM, y_BM - mean_B1)
    predicted_B = (kernel_BNN[..., -1, :-1] * weight_BM).sum(dim=-1) + mean_B1.squeeze(-1)
    return predicted_B.to(inputs.dtype)


def best_fit(inputs: Tensor, functions: Sequence[Sequence[int]]) -> Tensor:
    """The value of that function, a combination of terms, which has the least squared error.

    Of functions that fit alike, the mean: with all that are possible, no reader has less error.

    >>> tokens = torch.tensor([[[0.25, 0.25], [0.875, 0.0]]])  # f(0.25) = 0.25, f(0.875) = ?
    >>> best_fit(tokens, [(0,), (1,)])  # 1 - x or x
    tensor([0.8750])
    """
    x_BNL, y_BM = _context(inputs)
    known = {term for function in functions for term in function}
    of_term = {t: evaluate(x_BNL, torch.tensor([t], device=inputs.device)) for t in known}
    least_B = torch.full(y_BM.shape[:-1], torch.inf, device=inputs.device)
    sum_B, count_B = torch.zeros_like(least_B), torch.zeros_like(least_B)
    for function in functions:
        value_BN = torch.stack([of_term[t] for t in function]).amax(dim=0)
        error_B = (value_BN[..., :-1] - y_BM).square().sum(dim=-1)
        better_B, alike_B = error_B < least_B, error_B == least_B
        sum_B = torch.where(better_B, value_BN[..., -1], sum_B + alike_B * value_BN[..., -1])
        count_B = torch.where(better_B, 1.0, count_B + alike_B)
        least_B = torch.minimum(least_B, error_B)
    return sum_B / count_B


def _context(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs of all examples and the targets of all but the last, `[B, N - 1]`."""
    return inputs[..., :-1], inputs[..., :-1, -1]
