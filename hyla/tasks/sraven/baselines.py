"""Non-learned SRAVEN baselines: the exact solver, and variants with restricted information.

Shapes: B instances, K features, F values, R rules; slots of the columns are written S1, S2 and S3.
"""

import torch
from torch import Tensor

from hyla.errors import unknown_name
from hyla.tasks.sraven import ADDITION, DISTRIBUTE_THREE, STEPS, SUBTRACTION, SravenConfig
from hyla.tasks.sraven.solver import (
    NEARLY,
    check_panels,
    fitting_triples,
    rule_log_likelihood,
    solve,
)

EXACT, SLOT_BY_SLOT, NO_SIGN = "exact", "slot by slot", "no sign"
NO_ARITHMETIC, ONE_ROW, ONE_ROW_EXACT = "no arithmetic", "one row", "one row exact"
# All but the exact ones predict each slot of the answer separately, so several may use the same
# slot of another column. "no sign" finds the triples of slots that add or subtract in both rows,
# like "slot by slot", but cannot tell addition from subtraction.
BASELINES = {
    EXACT: "answers with the most probable panel",
    SLOT_BY_SLOT: "answers with the most probable symbol of each slot",
    NO_SIGN: "does not tell addition from subtraction",
    NO_ARITHMETIC: "does not know addition and subtraction",
    ONE_ROW: "does not look at the second row",
    ONE_ROW_EXACT: "answers with the most probable panel, without the second row",
}
SHOWN_BASELINES = (SLOT_BY_SLOT, NO_SIGN)  # baselines that models are compared with
AT_ONCE = 4096  # instances per batch, to limit memory


def read(reader: str, panels: Tensor, config: SravenConfig) -> Tensor:
    """Return the probability that a baseline gives each symbol, `[B, K, F]`.

    It predicts what it finds most probable, choosing at random among equals. panels:
    `[B, 3, 3, K]`, such as those of a `SravenBatch`; the last panel is ignored.

    >>> from hyla.tasks.sraven import Sraven
    >>> batch = Sraven(SravenConfig()).batch("all", 1000)
    >>> answers = read("no sign", batch.panels, SravenConfig())
    >>> right = answers.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)  # of each feature
    >>> bool(0.55 < right.prod(dim=-1).mean() < 0.6)
    True
    """
    check_panels(panels, config)
    if reader not in BASELINES:
        raise unknown_name("reader", reader, BASELINES)
    rows = 1 if reader in (ONE_ROW, ONE_ROW_EXACT) else 2
    if reader in (EXACT, ONE_ROW_EXACT):
        symbols = torch.arange(config.values, device=panels.device)
        return (solve(panels, config, rows=rows).best.unsqueeze(-1) == symbols).double()
    return torch.cat([_slot_by_slot(reader, some, config, rows) for some in panels.split(AT_ONCE)])


def _slot_by_slot(reader: str, panels: Tensor, config: SravenConfig, rows: int) -> Tensor:
    likelihood_R = rule_log_likelihood(config.values, rows + 1).exp().to(panels.device)
    weight = fitting_triples(panels, config, rows) * likelihood_R
    arithmetic = [ADDITION, SUBTRACTION]
    if reader == NO_ARITHMETIC:
        weight[..., arithmetic] = 0
    elif reader == NO_SIGN:
        weight[..., arithmetic] = weight[..., arithmetic].amax(dim=-1, keepdim=True) / 2
    votes_BKF = weight.new_zeros(len(panels), config.features, config.values)
    prescribed = _prescribed(panels, config.values).flatten(2)
    votes_BKF = votes_BKF.scatter_add(-1, prescribed, weight.flatten(2))
    most_BKF = votes_BKF >= NEARLY * votes_BKF.amax(dim=-1, keepdim=True)
    # Where no rule fits, all symbols are equally probable.
    return most_BKF / most_BKF.sum(dim=-1, keepdim=True).double()


def _prescribed(panels: Tensor, values: int) -> Tensor:
    """Return the symbol that each rule implies for a triple of slots, from first and last row."""
    a0, _, a2 = panels[:, :, 0, None, :, None].unbind(dim=1)
    b0, _, b2 = panels[:, :, 1, None, None, :].unbind(dim=1)
    c0 = panels[:, 0, 2, :, None, None]
    symbols = {rule: b2 + step for rule, step in enumerate(STEPS)}
    symbols |= {ADDITION: a2 + b2, SUBTRACTION: a2 - b2}
    symbols[DISTRIBUTE_THREE] = a0 + b0 + c0 - a2 - b2
    in_order = (symbols[rule] for rule in sorted(symbols))
    return torch.stack(torch.broadcast_tensors(*in_order), dim=-1) % values
