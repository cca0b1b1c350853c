"""SRAVEN: symbolic Raven's matrices."""

from hyla.tasks.sraven.config import (
    ADDITION,
    DISTRIBUTE_THREE,
    RULES,
    STEPS,
    STREAMS,
    SUBTRACTION,
    SravenConfig,
    number_of_combinations,
    split_combinations,
)
from hyla.tasks.sraven.task import Sraven, SravenBatch, accuracy, feature_accuracy

__all__ = [
    "ADDITION",
    "DISTRIBUTE_THREE",
    "RULES",
    "STEPS",
    "STREAMS",
    "SUBTRACTION",
    "Sraven",
    "SravenBatch",
    "SravenConfig",
    "accuracy",
    "feature_accuracy",
    "number_of_combinations",
    "split_combinations",
]
