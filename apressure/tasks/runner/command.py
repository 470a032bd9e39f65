"""What a `Runner` starts for a task: a command with the task's parameters, or Python with a function."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

CALLING: Final = Path(__file__).with_name("calling.py")


@dataclasses.dataclass(frozen=True)
class Job:
    """One process to start.

    Attributes:
        command: The program and its arguments.
        stdin: What it reads from its standard input.
        reports_result: Its result is what it reports, and not what it writes to its standard output.
    """

    command: list[str]
    stdin: bytes
    reports_result: bool


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that runs once for each task. No shell is involved.

    With `parameters="arguments"`, the parameters of a task are arguments after those of the command:

    * text, a number, true or false: one argument;
    * a list: one argument for each element;
    * an object: `--KEY VALUE` for each key; `--KEY` alone if the value is true, nothing if it is false or null, and
      `--KEY` with each value of a list;
    * null: none.

    Lists and objects further inside become JSON. Anyone who may enqueue tasks chooses these arguments, also ones that
    begin with `-`: end the command with `"--"` if the program knows that, or use `"stdin"`.

    With `parameters="stdin"`, the command reads the parameters as JSON from its standard input.

    Args:
        command: The program, and its first arguments. A program without a slash is looked for in PATH.
        parameters: How the command gets the parameters of a task.
        cwd: Its working directory; None for the Runner's.
        env: Variables besides those of the Runner.

    Raises:
        TypeError: The command is a string, or contains something that is none.
        ValueError: The command is empty, contains a null character, or `parameters` is invalid.
    """

    command: Sequence[str]
    parameters: Literal["arguments", "stdin"] = "arguments"
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.command, (str, bytes)):
            raise TypeError('a command is a list of the program and its arguments, such as ["gzip", "-k"]')
        if not self.command or not self.command[0]:
            raise ValueError("a command needs a program")
        for argument in self.command:
            _check_argument(argument)
        if self.parameters not in {"arguments", "stdin"}:
            raise ValueError(f"parameters must be 'arguments' or 'stdin', not {self.parameters!r}")

    def check(self) -> None:
        """Raise FileNotFoundError if the program cannot be found, so that its tasks need not fail one by one."""
        program = self.command[0]
        if (Path(program).is_absolute() or "/" not in program) and shutil.which(
            program, path=self.env.get("PATH")
        ) is None:
            raise FileNotFoundError(f"cannot run {program!r}: there is no such program. Install it, or give its path")

    def job(self, parameters: Any) -> Job:
        """Return what to start for a task.

        Raises:
            TypeError, ValueError: The parameters cannot be arguments.
        """
        if self.parameters == "stdin":
            return Job(list(self.command), json.dumps(parameters).encode(), reports_result=False)
        arguments = arguments_of(parameters)
        for argument in arguments:
            _check_argument(argument)
        return Job([*self.command, *arguments], b"", reports_result=False)


@dataclasses.dataclass(frozen=True)
class Function:
    """A Python function that is called once for each task, in a process of its own.

    Args:
        name: `module:function`.
        cwd: As for `Command`.
        env: As for `Command`.
    """

    name: str
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        module, colon, function = self.name.partition(":")
        if not (colon and all(part.isidentifier() for part in [*module.split("."), *function.split(".")])):
            raise ValueError(f"a function is named as 'module:function', not {self.name!r}")

    async def check(self) -> None:
        """Raise ValueError if a new process cannot import the function, so that its tasks need not fail one by one.

        Cancelled, that process is killed.
        """
        import anyio  # here, since it takes long to import

        job, environment = self.job(None, check=True), {**os.environ, **self.env}
        ran = await anyio.run_process(
            job.command, input=job.stdin, cwd=self.cwd, env=environment, check=False, start_new_session=True
        )
        if ran.returncode:
            *_, reason = ["the process ended", *ran.stderr.decode(errors="replace").strip().splitlines()]
            raise ValueError(
                f"the function {self.name} cannot be called: {reason}. Correct the name, or add the folder of the "
                "module to PYTHONPATH"
            )

    def job(self, parameters: Any, *, check: bool = False) -> Job:
        """Return what to start for a task; with `check`, what only imports the function."""
        order = {"function": self.name, "parameters": parameters, "path": sys.path, "check": check}
        return Job([sys.executable, "-P", str(CALLING)], json.dumps(order).encode(), reports_result=True)


def arguments_of(parameters: Any) -> list[str]:
    """Return the parameters of a task as the arguments of a command; `Command` has the rules."""
    if isinstance(parameters, Mapping):
        given = {key: value for key, value in parameters.items() if value is not None and value is not False}
        return [text for key, value in given.items() for text in (f"--{key}", *_texts([] if value is True else value))]
    return [] if parameters is None else _texts(parameters)


def _texts(value: Any) -> list[str]:
    """Return the elements of a list, or the value itself, each as one argument."""
    elements = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [element if isinstance(element, str) else json.dumps(element, ensure_ascii=False) for element in elements]


def _check_argument(argument: Any) -> None:
    if not isinstance(argument, str):
        raise TypeError(f"an argument of a command must be text, not {type(argument).__name__}")
    if "\0" in argument:
        raise ValueError("an argument of a command must not contain a null character")
    try:
        os.fsencode(argument)
    except UnicodeEncodeError as error:
        raise ValueError(f"an argument of a command must be text that the system can encode: {error}") from error
