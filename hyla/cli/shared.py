"""What several commands need: devices, JSON, progress bars and how a command is registered."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, ParamSpec

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tyro.extras import SubcommandApp

from hyla.attention.variants import import_kind
from hyla.errors import bad_value
from hyla.tasks.base import TaskConfig

Arguments = ParamSpec("Arguments")
Command = Callable[Arguments, None]


def command(app: SubcommandApp, name: str) -> Callable[[Command[Arguments]], Command[Arguments]]:
    """Registers a function so that parsing gives what is to be called, instead of calling it.

    This separates the output of the parser from that of the command.
    """

    def register(function: Command[Arguments]) -> Command[Arguments]:
        @wraps(function)
        def parsed(*arguments: Arguments.args, **options: Arguments.kwargs) -> Callable[[], None]:
            return partial(function, *arguments, **options)

        app.command(name=name)(parsed)
        return function

    return register


def stub(text: str) -> Callable[[], None]:
    """Return a placeholder for a command whose module need not be imported."""

    def command_of_another_line() -> None: ...

    command_of_another_line.__doc__ = text
    return command_of_another_line


def library_split(name: str) -> str:
    """The name of a split in the library.

    >>> library_split("held-out")
    'held_out'
    """
    return name.replace("-", "_")


def typed_kind(text: str) -> str:
    """The name of a kind as typed on a command line: the module in `package.module:name` is
    imported, from the current folder too.

    >>> typed_kind("hyla")
    'hyla'
    """
    if ":" not in text:
        return text
    search_current_folder()
    return import_kind(text)


def search_current_folder() -> None:
    """Import from the current folder too, but last, so that nothing there hides a package."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def typed_task(name: str) -> type[TaskConfig]:
    """Import a task of somebody else, typed as `package.module:Class`."""
    module, _, attribute = name.partition(":")
    search_current_folder()
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise bad_value("task", repr(name), f"a class that can be imported ({error})") from None
    if not isinstance(found, type) or not issubclass(found, TaskConfig) or not found.task_name:
        raise bad_value("task", repr(name), "a TaskConfig with @register_task")
    return found


def checked_device(name: str) -> torch.device:
    """A device that exists here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise bad_value("device", repr(name), "a device of this machine, such as cpu") from None
    return device


def output() -> Console:
    """Standard output; tables that go to a file or a pipe are not cut to the width of a screen."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 200)
    return console


def write_json(thing: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(thing) + "\n")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal; yields what advances it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
