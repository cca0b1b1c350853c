"""The command line, parsed by tyro; what is wrong with it in one line."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes
from tyro.extras import SubcommandApp

from hyla.errors import unknown_name

# Names that other libraries, or earlier versions, give our options: typos are matched to these too.
ALSO_CALLED = {
    "--attention": "--kind", "--batch-size": "--batch", "--depth": "--layers",
    "--dimension": "--width", "--gpu": "--device", "--learning-rate": "--lr",
    "--max-tokens": "--buckets", "--n-heads": "--heads", "--n-layers": "--layers",
    "--output": "--folder", "--seed": "--seeds", "--wd": "--weight-decay",
}  # fmt: skip
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ONCE = ("--lr", "--weight-decay", "--warmup", "--splits", "--only")


def parse(app: SubcommandApp, arguments: Sequence[str]) -> Callable[[], None]:
    """What the command line asks for, to be called. Raises ValueError for what is wrong with it."""
    for option in ONCE:
        # The parser would take the last list, as if the others had not been given.
        if [_option(argument) for argument in arguments].count(option) > 1:
            raise ValueError(
                f"{option}: given more than once; write all values behind one {option}."
            )
    with redirect_stderr(io.StringIO()) as printed:
        try:
            return _tyro(app, arguments)
        except SystemExit as stopped:
            if stopped.code != 2:
                raise
    raise ValueError(_explained(app, arguments, printed.getvalue()))


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """An error of the library, with the option that it is about as it was typed.

    >>> as_typed("time_limit: expected a number of minutes above 0, got -1.", ["--time-limit=-1"])
    '--time-limit: expected a number of minutes above 0, got -1.'
    """
    name = re.match(r"[a-z_]+(?=[:, ])", message)
    option = _option(f"--{name[0]}") if name else ""
    typed = [*map(_option, arguments)]
    option = option if option in typed else ALSO_CALLED.get(option, "")
    if name is None or option not in typed:
        return message
    return option + message[name.end() :]


def _tyro(app: SubcommandApp, arguments: Sequence[str]) -> Any:
    return app.cli(prog="hyla", args=arguments, config=(OmitArgPrefixes, FlagCreatePairsOff))


def _option(argument: str) -> str:
    """An argument as the name of an option; the parser reads --a_b=1 as --a-b 1."""
    return argument.split("=")[0].replace("_", "-")


def _explained(app: SubcommandApp, arguments: Sequence[str], printed: str) -> str:
    """One line for the box that the parser printed."""
    command = [*takewhile(lambda argument: not argument.startswith("-"), arguments)]
    options = _options_of(app, command)
    if options == ["--help"] and len(command) < len(arguments):  # of a group, or of no command
        return _wrong_command(app, command)
    for argument in arguments:
        if options and argument.startswith("--") and _option(argument) not in options:
            return unknown_option(_option(argument), options)
    rows = list(_rows(printed))
    text = " ".join(rows)
    if match := re.search(r"Error parsing (--[\w-]+)", text):
        usage = next((row for row in rows[1:] if row.startswith(match[1])), "")
        expected = usage.removeprefix(match[1]).strip() or "another value"
        expected = re.sub(r"(\w+) \[\1 \.\.\.\]", r"\1 values with spaces between", expected)
        got = " ".join(_values(arguments, match[1])) or "nothing"
        return f"{match[1]}: expected {expected}, got {got}."
    if match := re.search(r"Missing value for argument '(--[\w-]+)'", text):
        return f"{match[1]}: expected a value, got nothing."
    if match := re.search(r"Required options Missing from .*?: (\S+) (.*?) \(required\)", text):
        return f"{match[1]}: expected {match[2][0].lower()}{match[2][1:].rstrip('.')}, got nothing."
    if match := re.search(r"Missing subcommand Expected one of \{(.*?)\}", text):
        return f"command: expected one of {match[1]}, got nothing."
    if match := re.search(
        r"Unrecognized options: (\S+).*? Available subcommands: (.*?) For ", text
    ):
        return str(unknown_name("command", match[1].rstrip(","), match[2].split(", ")))
    if match := re.search(r"Unrecognized options: (\S+)", text):
        return f"{match[1].rstrip(',')}: belongs to no option. --help lists all."
    return text


def unknown_option(given: str, options: Sequence[str]) -> str:
    """Names the nearest options.

    >>> unknown_option("--learnig-rate", ["--lr", "--layers"])
    '--learnig-rate: unknown option. Did you mean --lr? --help lists all.'
    """
    names = [*options, *(name for name, ours in ALSO_CALLED.items() if ours in options)]
    near = [ALSO_CALLED.get(name, name) for name in get_close_matches(given, names, cutoff=0.6)]
    hint = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return f"{given}: unknown option.{hint} --help lists all."


def _wrong_command(app: SubcommandApp, command: Sequence[str]) -> str:
    """What is wrong with the words in front of the options: the first that is unknown."""
    message = ""
    for end in range(len(command) + 1):
        try:
            parse(app, command[:end])
        except ValueError as error:
            message = str(error)
        if "unknown name" in message:
            break
    return message


def _options_of(app: SubcommandApp, command: Sequence[str]) -> list[str]:
    """All options of a command, read from its help."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        _tyro(app, [*command, "--help"])
    text = COLOUR.sub("", printed.getvalue())
    return list(dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)))


def _rows(printed: str) -> Iterator[str]:
    """The text of a box, its title first; its lines are drawn with - where ─ cannot be shown."""
    for line in COLOUR.sub("", printed).splitlines():
        row = line.strip(" │╭╮╰╯─")
        if row.strip("-"):
            yield row


def _values(arguments: Sequence[str], option: str) -> Iterator[str]:
    """The values that follow an option."""
    inside = False
    for argument in arguments:
        if argument.startswith("--"):
            inside = _option(argument) == option
            if inside and "=" in argument:
                yield repr(argument.split("=", 1)[1])
        elif inside:
            yield repr(argument)
