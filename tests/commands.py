"""Commands of `hyla`, run in the process of the tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from hyla import cli


class Hyla:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        self.capsys, self.folder = capsys, tmp_path

    def __call__(self, command: str, *more: str) -> str:
        cli.main([*command.split(), *more])
        output = self.capsys.readouterr()
        assert not output.err
        return output.out

    def json(self, command: str, *more: str) -> Any:
        text = self(command, *more, "--json")
        assert text.count("\n") == 1
        return json.loads(text)

    def refused(self, command: str, *more: str, code: int = 2) -> str:
        with pytest.raises(SystemExit) as stopped:
            cli.main([*command.split(), *more])
        output = self.capsys.readouterr()
        assert stopped.value.code == code
        assert not output.out
        return output.err

    def error(self, command: str, *more: str) -> str:
        """The one line that a command ends with."""
        message = self.refused(command, *more)
        assert message.startswith("error: ")
        assert message.count("\n") == 1
        return message

    def file(self, content: object) -> str:
        path = self.folder / "instance.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)
