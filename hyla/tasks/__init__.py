"""The reasoning tasks, by address: split, seed and number of an instance determine it.

`base` is the seam; `check` says what is wrong with a task of your own.
"""

from hyla.tasks.base import (
    Label,
    Measure,
    Probe,
    Recipe,
    Split,
    Task,
    TaskConfig,
    register_metric,
    register_task,
    task_class,
    task_names,
)
from hyla.tasks.check import TaskError, check

__all__ = [
    "Label",
    "Measure",
    "Probe",
    "Recipe",
    "Split",
    "Task",
    "TaskConfig",
    "TaskError",
    "check",
    "register_metric",
    "register_task",
    "task_class",
    "task_names",
]
