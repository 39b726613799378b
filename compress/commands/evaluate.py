"""``compress eval`` and ``compress history``: what a model scores, and how it came to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.models import is_export, open_model, spec_of, task_for
from compress.commands.output import as_json, plain, write_json
from compress.commands.run import Json
from eval.errors import UserError


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact, a transformers folder or an export.")],
    data: Annotated[str, typer.Option(help="Folder, file or hub name of the data.")],
    task: Annotated[str | None, typer.Option(help="Kind of task; by default the model's own.")] = None,
    against: Annotated[str | None, typer.Option(metavar="MODEL", help="The model it is compared with.")] = None,
    split: Annotated[str, typer.Option(help="Which examples.")] = "validation",
    metric: Annotated[str | None, typer.Option(help="The score that decides.")] = None,
    margin: Annotated[float, typer.Option(min=0.0, help="Loss of the score that still counts as no worse.")] = 0.01,
    latency: Annotated[bool, typer.Option("--latency/--no-latency", help="Measure milliseconds too.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 13,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Keep the result; - prints it.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page.")] = None,
) -> None:
    """Measure a model on data: score, size, latency, and the paired difference to another model."""
    # The last part of a path is name enough, unless both models have the same.
    given = [model] if against is None else [model, against]
    short = [Path(name).resolve().name for name in given]
    names = short if len(set(short)) == len(short) else given
    candidate = open_model(model, name=names[0])
    problems = [f"{path}: its folder does not exist" for path in (json, html) if path and not path.parent.is_dir()]
    if problems:
        raise UserError(*problems)
    wanted = task_for(spec_of(candidate), data, task, metric)
    reference = None if against is None else open_model(against, wanted.spec, name=names[1])

    from eval.latency import LatencyPlan
    from eval.together import measure_together
    from eval.writing import write_beside

    timing = LatencyPlan() if latency else None
    results = measure_together([candidate], wanted, reference, split, margin, timing, seed)
    if html is not None:
        from eval.report.page import write_page

        write_page(html, title=f"{model} on {data}", results=results)
    figures = as_json([plain(result) for result in results])
    if str(json) == "-":
        typer.echo(figures)
        return
    if json is not None:
        write_beside(json, f"{figures}\n".encode())

    from eval.report.console import to_text

    typer.echo(to_text(results))


def history(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact folder.")], json: Json = False
) -> None:
    """Show how an artifact came to be: every step with its config, seed, sizes and digests."""
    from compress.artifact import Artifact

    if is_export(model):
        raise UserError(f"{model}: is an export; ask for the history of the model folder it was made from")
    found = Artifact.from_pretrained(model)
    if json:
        write_json([record.model_dump(mode="json") for record in found.lineage])
    else:
        typer.echo(found.history())
