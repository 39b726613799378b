"""How a command ends when something goes wrong: a plain message on standard error and an exit code."""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from compress.terminal.messages import following
from compress.terminal.next_command import say_how_to_go_on
from eval.errors import CompressError, UserError, is_out_of_memory, shortened
from eval.files.full_disk import full_disk

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""
GIVEN = "compress.arguments"
"""Where a context keeps the arguments of its command."""
READ = 20_000
"""Characters of problems after which the others are only counted."""


class Command(TyperCommand):
    """A command that turns whatever its function raises into a message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as the user gave them, and read them."""
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the function of the command."""
        debug = bool(ctx.find_root().params.get("debug"))
        try:
            with following(ctx.info_name) as follow:
                try:
                    result = super().invoke(ctx)
                except (KeyboardInterrupt, typer.Abort):
                    resumable = any(parameter.name == "resume" for parameter in self.params)
                    given = [*ctx.meta[GIVEN], *(["--resume"] if resumable and not ctx.params["resume"] else [])]
                    say_how_to_go_on([ctx.find_root().info_name, ctx.info_name, *given], follow.kept_in)
                    raise typer.Exit(INTERRUPTED) from None
            sys.stdout.flush()
            return result
        except typer.Exit:
            raise
        except Exception as error:
            raise typer.Exit(report(error, debug)) from error


def report(error: Exception, debug: bool = False) -> int:
    """Print what went wrong on standard error.

    Args:
        error: What was raised.
        debug: Whether the traceback is printed too.

    Returns:
        The exit code: 2 for a user's error, else 1.
    """
    if isinstance(error, BrokenPipeError):  # whoever read the output has gone
        return 1
    if debug:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    for line in _lines(error, debug):
        typer.echo(shortened(line), err=True)
    return error.exit_code if isinstance(error, CompressError) else 1


def _lines(error: Exception, debug: bool) -> list[str]:
    if isinstance(error, UserError):
        count = len(error.problems)
        return [*_first(error.problems), *([f"{count:,} errors"] if count > 1 else [])]
    if isinstance(error, CompressError):
        return str(error).splitlines()
    if is_out_of_memory(error):
        less = "a smaller batch_size, more gradient_accumulation_steps or a smaller model needs less"
        return [f"out of memory ({_needed(error)}); {less}"]
    if full := full_disk(error):
        return [full]
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename}: {error.strerror}"]
    where = "" if debug else f"; the traceback is in {_keep_traceback(error)}, and --debug shows it here"
    return [f"unexpected error, most likely a bug: {type(error).__name__}: {_first_line(error)}{where}"]


def _needed(error: Exception) -> str:
    """Return how much memory was asked for, where the message says it, else its first line."""
    asked = re.search(r"allocate (\d+) bytes", str(error))
    return f"{int(asked[1]) / 1e9:.1f} GB were asked for" if asked else _first_line(error)


def _first(problems: Sequence[str]) -> list[str]:
    """Return as many problems as a person may read."""
    found: list[str] = []
    for problem in problems:
        if sum(map(len, found)) > READ:
            return [*found, f"and {len(problems) - len(found):,} more"]
        found.append(problem)
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _keep_traceback(error: Exception) -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="compress-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write("".join(traceback.format_exception(error)))
            return file.name
    except OSError:
        return "no file (none could be written)"
