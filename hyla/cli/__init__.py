"""The command `hyla`: one typed function for each subcommand."""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

from tyro.extras import SubcommandApp

import hyla
from hyla.cli.parse import as_typed, parse
from hyla.cli.shared import command, stub
from hyla.tasks import base

# Imported name and the name to install it by.
OPTIONAL_PACKAGES = {
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "pyarrow": "pyarrow",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
    "threadpoolctl": "scikit-learn",
    "wandb": "wandb",
}

# By name: where the function is, and what its help says.
COMMANDS = {
    "runs": ("hyla.cli.runs", "List runs and how they stand."),
    "reproduce": ("hyla.cli.reproduce", "Train and analyse what is missing, and show the table."),
    "analyse": ("hyla.cli.analyse", "Decode and draw the latent codes of a trained model."),
    "report": ("hyla.cli.report", "Write all results as one page."),
    "doctor": ("hyla.cli.doctor", "Check what hyla can use on this machine."),
}
TRAIN = "Train a population of models, into a run folder."


def app_for(arguments: Sequence[str]) -> SubcommandApp:
    """Build the command line, importing only the module of the requested command."""
    app = SubcommandApp()
    asked = arguments[0] if arguments else ""
    for name, (module, text) in base.COMMANDS.items():
        if name == asked:
            app.command(import_module(module).app, name=name, help=text)
        else:
            command(app, name)(stub(text))
    if asked == "train":
        app.command(import_module("hyla.cli.train").app_for(arguments[1:]), name=asked, help=TRAIN)
    else:
        command(app, "train")(stub(TRAIN))
    for name, (module, text) in COMMANDS.items():
        command(app, name)(getattr(import_module(module), name) if name == asked else stub(text))
    return app


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Lets a request to end run what cleans up, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    # What the process was started to ignore, as by nohup, stays ignored.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _fail(message: str, code: int) -> SystemExit:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors are printed in one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    if [*arguments] == ["--version"]:
        sys.stdout.write(f"hyla {hyla.__version__}\n")
        return
    try:
        with _ended_like_interrupted():
            parse(app_for(arguments), arguments)()
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        raise _fail(str(error) or "interrupted", 130) from None
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not flush it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_PACKAGES:
            raise
        name = OPTIONAL_PACKAGES[error.name]
        raise _fail(f"error: this needs {name}: pip install {name}", 2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise _fail(f"error: {reason}", 2) from None
    except ValueError as error:
        raise _fail(f"error: {as_typed(str(error), arguments)}", 2) from None
