"""``compress eval`` and ``compress history``: what a model scores, and how it came to be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.optimize import Label, Text
from compress.commands.run import Json
from compress.terminal.models import AcceptIncomplete, answering, is_export, open_model, spec_of, task_for
from compress.terminal.options import finite, index_forms
from compress.terminal.output import as_json, plain, write_json
from eval.errors import UserError, did_you_mean
from eval.naming import distinct_names, public_name

if TYPE_CHECKING:
    from compress.export.check.arithmetic import Arithmetic
    from eval.ranking.vector_index import IndexForm
    from eval.result import Result
    from eval.task import TaskSpec


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact, a transformers folder or an export.")],
    data: Annotated[str, typer.Option(help="Folder, file or hub name of the data.")],
    task: Annotated[str | None, typer.Option(help="Kind of task; by default the model's own.")] = None,
    against: Annotated[str | None, typer.Option(metavar="MODEL", help="The model it is compared with.")] = None,
    text: Text = None,
    label: Label = None,
    split: Annotated[
        str, typer.Option(help="Which examples; auto takes a labelled test split, else validation.")
    ] = "auto",
    metric: Annotated[str | None, typer.Option(help="The primary metric.")] = None,
    margin: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="Loss of the score that still counts as no worse.")
    ] = 0.01,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Measure milliseconds and peak memory too.")
    ] = True,
    arithmetic: Annotated[
        str | None, typer.Option(help="Compute the 8-bit products of an export as another processor does: avx2, vnni.")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORM",
            help="For retrieval: hold documents in another form too, 'int8' or 'vectors: binary, rescore: int8'; "
            "may be repeated.",
        ),
    ] = None,
    first_stage: Annotated[
        str | None,
        typer.Option(
            metavar="bm25|FOLDER",
            help="For reranking: what finds the documents that are sorted, bm25 or the folder of an embedder; by "
            "default as the model's own task says.",
        ),
    ] = None,
    stress: Annotated[
        bool, typer.Option("--stress", help="Answer perturbed texts too: typos, casing, negation, length.")
    ] = False,
    attributions: Annotated[
        bool, typer.Option("--attributions", help="Compare which tokens both models base their predictions on.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of what is drawn, and of the comparison of more than 1,000 examples.")
    ] = 13,
    accept_incomplete: AcceptIncomplete = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Keep the result; - prints it.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page.")] = None,
) -> None:
    """Measure a model on data: score, size, latency, memory, and the paired difference to another model."""
    from compress.export.runtime.answering import default_threads
    from eval.data.beir import searched_as
    from eval.data.columns import named_columns
    from eval.kinds.kind_registry import kind_of

    names = distinct_names([model] if against is None else [model, against])
    if arithmetic is not None:
        names[0] += f" on {arithmetic}"
    # One number of threads on both sides of a ratio, whatever an export was tuned to.
    opened: dict[str, Any] = {
        "accept_incomplete": accept_incomplete,
        "threads": None if against is None else default_threads() or None,
    }
    forms = index_forms(index or ())
    candidate = open_model(model, name=names[0], arithmetic=_arithmetic(arithmetic), **opened)
    task = task or searched_as(data, spec_of(candidate).kind)
    kind = task or spec_of(candidate).kind
    alone = {"--stress": stress, "--attributions": attributions} if against is None else {}
    _refuse([path for path in (json, html) if path], [flag for flag in alone if alone[flag]], kind, forms)
    wanted = task_for(spec_of(candidate), data, task, metric, named_columns(kind_of(kind), text, label), first_stage)
    candidate, reference = answering(candidate, wanted.spec), None
    if against is not None:
        reference = answering(open_model(against, wanted.spec, name=names[1], **opened), wanted.spec)
    if attributions:
        _refuse_unattributed(wanted.spec, candidate, reference)
    if opened["threads"] and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(opened["threads"])

    from compress.engine.beside_scores import with_more
    from compress.engine.looks import look_again
    from eval.comparison import measure_together
    from eval.cost.latency import LatencyPlan
    from eval.data.roles import reporting
    from eval.measurement import scored_examples
    from eval.ranking.indexed import indexed

    split = reporting(wanted, split)
    timing = LatencyPlan() if latency and arithmetic is None else None  # an emulation takes its time
    models = [candidate, *indexed([candidate], forms)]
    counted = look_again(Path(model), split, scored_examples(wanted, split), models)
    results = measure_together(models, wanted, reference, split, margin, timing, seed)
    known = {found.name: found for found in (*models, reference) if found is not None}
    asked = {"stress": stress, "attributions": attributions, "memory": timing is not None}
    results = with_more(results, known, wanted, split, seed, (), **asked)
    if html is not None:
        from eval.report.page import write_page

        write_page(html, title=f"{names[0]} on {public_name(data)}", results=results, examples=wanted.splits[split])
    _tell(results, json, counted)


def _refuse(files: Sequence[Path], alone: Sequence[str], kind: str, forms: Sequence[IndexForm]) -> None:
    """Refuse what can be seen before the data is read.

    Args:
        files: What shall be written.
        alone: Flags of comparisons that were given without a model to compare with.
        kind: Kind of task.
        forms: Forms of an index.

    Raises:
        UserError: Something is wrong; all of it at once.
    """
    from compress.recipe.checks import index_problems

    problems = [f"{path}: its folder does not exist" for path in files if not path.parent.is_dir()]
    problems += [f"{path}: is a folder; name a file" for path in files if path.is_dir()]
    problems += [f"{flag}: compares a model with its teacher; add --against MODEL" for flag in alone]
    problems += [f"--index: {problem}" for problem in index_problems(kind, forms)]
    if problems:
        raise UserError(*problems)


def _refuse_unattributed(spec: TaskSpec, *models: Any) -> None:
    from compress.engine.beside_scores import unattributed

    if problems := list(unattributed(spec, models)):
        raise UserError(*problems)


def _tell(results: Sequence[Result], json: Path | None, counted: str) -> None:
    """Print the results, or keep or print them as JSON; then say how often the examples have been looked at."""
    from eval.files.writing import atomic_write
    from eval.report.console import to_text

    figures = as_json([plain(result) for result in results])
    if str(json) == "-":
        typer.echo(figures)
        return
    if json is not None:
        atomic_write(json, f"{figures}\n".encode())
    typer.echo(to_text(results))
    if counted:
        typer.echo(counted)


def _arithmetic(given: str | None) -> Arithmetic | None:
    from compress.export.check.arithmetic import ARITHMETICS

    known = next((kind for kind in ARITHMETICS if kind == given), None)
    if given is not None and known is None:
        raise UserError(f"--arithmetic: got {given!r}{did_you_mean(given, ARITHMETICS)}")
    return known


def history(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact folder.")], json: Json = False
) -> None:
    """Show how an artifact came to be: every step with its config, seed, sizes and digests."""
    from compress.artifact.artifact import Artifact

    if is_export(model):
        raise UserError(f"{model}: is an export; ask for the history of the model folder it was made from")
    found = Artifact.from_pretrained(model)
    if json:
        write_json([record.model_dump(mode="json") for record in found.lineage])
    else:
        typer.echo(found.history())
