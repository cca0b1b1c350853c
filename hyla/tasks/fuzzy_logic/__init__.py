"""Fuzzy logic functions to be learned in context."""

from hyla.tasks.fuzzy_logic.config import (
    FIXED_STREAM,
    STREAMS,
    FuzzyLogicConfig,
    split_combinations,
)
from hyla.tasks.fuzzy_logic.task import (
    FuzzyLogic,
    FuzzyLogicBatch,
    describe,
    evaluate,
    pooled_r2,
    r2,
)

__all__ = [
    "FIXED_STREAM",
    "STREAMS",
    "FuzzyLogic",
    "FuzzyLogicBatch",
    "FuzzyLogicConfig",
    "describe",
    "evaluate",
    "pooled_r2",
    "r2",
    "split_combinations",
]
