"""The command line: twenty-four commands; nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from compress import __version__
from compress.commands import (
    augment,
    certify,
    check,
    compare,
    demo,
    distill,
    doctor,
    evaluate,
    export,
    init,
    optimize,
    plan,
    predict,
    push,
    recipes,
    run,
    search,
    teach,
    techniques,
    verify,
)
from compress.terminal.failures import INTERRUPTED, Command, report
from eval.cost.openmp import wait_briefly
from eval.errors import shortened
from eval.files.streams import guard_streams

UsageError: Any = typer.BadParameter.__mro__[2]
"""``ClickException``, of click or of typer itself, as its version has it."""
app = typer.Typer(
    help="Make a BERT-class encoder smaller, prove what it lost, and export it for any runtime.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nlp-compress {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", envvar="COMPRESS_DEBUG", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make a BERT-class encoder smaller, prove what it lost, and export it for any runtime."""
    del debug, version


app.command("optimize", cls=Command)(optimize.optimize)
app.command("distill", cls=Command)(distill.distill)
app.command("run", cls=Command)(run.run)
app.command("check", cls=Command)(check.check)
app.command("plan", cls=Command)(plan.plan)
app.command("list", cls=Command)(techniques.list_techniques)
app.command("show", cls=Command)(techniques.show_technique)
app.command("recipes", cls=Command)(recipes.recipes)
app.command("init", cls=Command)(init.init)
app.command("schema", cls=Command)(techniques.schema)
app.command("search", cls=Command)(search.search)
app.command("teach", cls=Command)(teach.teach)
app.command("augment", cls=Command)(augment.augment)
app.command("eval", cls=Command)(evaluate.evaluate)
app.command("export", cls=Command)(export.export)
app.command("compare", cls=Command)(compare.compare)
app.command("verify", cls=Command)(verify.verify)
app.command("certify", cls=Command)(certify.certify)
app.command("recheck", cls=Command)(certify.recheck)
app.command("history", cls=Command)(evaluate.history)
app.command("predict", cls=Command)(predict.predict)
app.command("push", cls=Command)(push.push)
app.command("demo", cls=Command)(demo.demo)
app.command("doctor", cls=Command)(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What stands after ``compress``; None takes the command line's own.

    Returns:
        0 when done; 2 for an error in the recipe, the data, the model or the arguments; 130 after Ctrl-C; else 1.
    """
    wait_briefly()
    if problem := guard_streams():
        typer.echo(problem, err=True)
        return 1
    try:
        if arguments is None:  # usage names the command as it was called
            code = app(standalone_mode=False)
        else:
            code = app(args=list(arguments), prog_name="compress", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        error.message = shortened(error.message)
        error.show()
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("stopped", err=True)
        return INTERRUPTED
    except SystemExit as stop:  # nobody reads what is printed
        return stop.code if isinstance(stop.code, int) else 1
    except OSError as error:  # of a stream: commands report all others
        return report(error)
    return code if isinstance(code, int) else 0
