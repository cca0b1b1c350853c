"""What several commands need: devices, JSON, progress bars and how a command is registered."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tyro.extras import SubcommandApp

from hyla.attention.variants import import_kind
from hyla.errors import bad_value

Arguments = ParamSpec("Arguments")
Command = Callable[Arguments, None]


def command(app: SubcommandApp, name: str) -> Callable[[Command[Arguments]], Command[Arguments]]:
    """Registers a function so that parsing gives what is to be called, instead of calling it.

    What the parser prints can then be told from what the command prints.
    """

    def register(function: Command[Arguments]) -> Command[Arguments]:
        @wraps(function)
        def parsed(*arguments: Arguments.args, **options: Arguments.kwargs) -> Callable[[], None]:
            return partial(function, *arguments, **options)

        app.command(name=name)(parsed)
        return function

    return register


def stub(text: str) -> Callable[[], None]:
    """Stand for a command that is not asked for, so that its module need not be imported."""

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
    if os.getcwd() not in sys.path:  # a command starts without it; last, so that it hides nothing
        sys.path.append(os.getcwd())
    return import_kind(text)


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
