"""``compress export``: a model as a file that other runtimes load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.optimize import Label, Text
from compress.commands.run import Json
from compress.export.targets.target_registry import BUILT_IN, FASTEST, FIRST_TARGET, get_target, tuned_targets
from compress.terminal.models import AcceptIncomplete, is_export, with_data
from compress.terminal.next_command import say_next, say_next_trial
from compress.terminal.options import finite
from compress.terminal.output import megabytes, prose, table, write_json
from eval.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compress.artifact.artifact import Artifact
    from compress.export.folder import ExportReport
    from compress.export.tune import Tuned
    from eval.data.loading import Task


FIRST_GOAL = "latency"
"""What ``--to fastest`` measures where ``--tune`` does not say it."""


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact, or a transformers folder or hub name.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier export is replaced.")],
    to: Annotated[
        str | None,
        typer.Option(
            help=f"Target: {', '.join(BUILT_IN)}, or that of an installed package; by default {FIRST_TARGET}, and with "
            f"--tune the fastest installed. {FASTEST} is --tune {FIRST_GOAL}."
        ),
    ] = None,
    int8: Annotated[
        bool | None, typer.Option("--int8/--fp32", help="8-bit weights or not; by default as the recipe's steps say.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data on which the export has to agree with the model, and from which 8 bits take their ranges; "
            "without it, synthetic text, and ranges found at run time. Of one file, texts are enough."
        ),
    ] = None,
    text: Text = None,
    label: Label = None,
    tune: Annotated[
        str | None,
        typer.Option(metavar="GOAL", help="Measure the variants on --data, keep the best for latency or throughput."),
    ] = None,
    agreement: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            callback=finite,
            help="Least share of equal predictions of 8 bits, for which forms are tried; 0.97, tuning 0.98.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse 8 bits that fall short on synthetic texts too, instead of a note.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Modules that stay in float, such as '*.layer.0'; may be repeated."),
    ] = None,
    least_score: Annotated[
        float | None, typer.Option(callback=finite, help="For --tune: the least score that a variant may have.")
    ] = None,
    assets: Annotated[
        Path | None, typer.Option(help="For web: the node_modules folder with onnxruntime-web and its tokenizer.")
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            help="A teacher that was fine-tuned with an adapter over the base MODEL; twice or more, for one graph of "
            "several tasks, which are called as their folders.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the target's own; may be repeated.")
    ] = None,
    accept_incomplete: AcceptIncomplete = False,
    json: Json = False,
) -> None:
    """Export a model, compare the export with the model on the same inputs, and refuse it if they disagree."""
    if adapter:
        others: dict[str, Any] = {
            "--to": to not in (None, FIRST_TARGET),
            "--data": data,
            "--text": text,
            "--label": label,
            "--tune": tune,
            "--exclude": exclude,
        }
        others |= {"--least-score": least_score is not None, "--assets": assets, "--option": option}
        others |= {"--accept-incomplete": accept_incomplete}
        given = [name for name, value in others.items() if value]
        _export_adapters(model, adapter, out, int8, agreement, strict, given, json)
        return
    if to == FASTEST:
        to, tune = None, tune or FIRST_GOAL
    target = to or FIRST_TARGET
    problems, own = _own_options(target, assets, option or ())
    if tune is not None:
        problems += ["--option: is of one export; leave it out with --tune"] if option else []
        problems += _tuning_problems(tune, to, int8, data)
    elif least_score is not None:
        problems.append("--least-score: is for --tune; give it, or leave this out")
    if is_export(model):
        problems.append(f"{model}: is an export already; export the model folder it was made from")
    if exclude and (tune is not None or int8 is False):
        problems.append("--exclude: is of one 8-bit export; give --int8 with it, and leave --tune and --fp32 out")
    if problems:
        raise UserError(*problems)

    from compress.artifact.artifact import Artifact

    artifact = Artifact.from_pretrained(model, accept_incomplete=accept_incomplete)
    artifact, task = with_data(artifact, data, text, label, truths=tune is not None)
    if tune is not None and task is not None:
        from compress.export.tune import AGREEMENT
        from compress.export.tune import tune as tuned

        needed = AGREEMENT if agreement is None else agreement
        targets = None if to is None else (to,)
        found = tuned(artifact, out, task, goal=tune, targets=targets, agreement=needed, least_score=least_score)
        if not json:
            _show(found)
        report = found.report
    else:
        how: dict[str, Any] = {"agreement": agreement, "strict": strict, "options": own, "exclude": exclude or ()}
        report = _written(artifact, out, target, task, int8=True if exclude else int8, **how)
    if json:
        _print(report)
    else:
        _tell(report, target, artifact.task.kind)


def _written(artifact: Artifact, out: Path, target: str, task: Task | None, **how: Any) -> ExportReport:
    """Write one export; the report says, too, whether another would be faster on this processor."""
    from compress.export.faster import faster
    from compress.export.folder import export as write

    given = {} if task is None else _examples_of(task)
    report = write(artifact, out, target, **how, **given)
    if target not in tuned_targets():
        return report
    note = faster(artifact, report, **given)
    return replace(report, notes=(*report.notes, *filter(None, [note])))


def _examples_of(task: Task) -> dict[str, Any]:
    """Return what the gate compares, and what calibrates."""
    from compress.export.default_int8 import calibrating, compared

    return {"examples": compared(task), "calibration": calibrating(task)}


def _export_adapters(
    base: str,
    folders: Sequence[str],
    out: Path,
    int8: bool | None,
    agreement: float | None,
    strict: bool,
    others: Sequence[str],
    json: bool,
) -> None:
    """Write one export of several adapters over a base."""
    named = {Path(folder).name: folder for folder in folders}
    problems = [f"--adapter: is for one graph in ONNX; leave {' and '.join(others)} out"] if others else []
    if len(named) < len(folders):
        problems.append("--adapter: two folders have one name, and tasks are called as the folders; rename one")
    if problems:
        raise UserError(*problems)
    from compress.export.folder import AGREEMENT
    from compress.export.several_adapters import export_adapters

    least = AGREEMENT if strict and agreement is None else agreement
    report = export_adapters(base, named, out, int8=bool(int8), agreement=least)
    if json:
        figures = {"scheme": report.scheme, "bytes": report.bytes, "one_bytes": report.one_bytes}
        gates = {name: gate.to_dict() for name, gate in report.gates.items()}
        write_json({"folder": str(report.folder), **figures, "gates": gates})
        return
    share = report.bytes / report.one_bytes
    typer.echo(
        f"wrote {report.folder}: {report.scheme}, {megabytes(report.bytes)} MB for {len(named)} tasks, "
        f"{share:.2f} times the model of one"
    )
    rows = [[name, f"{g.agreement:.2%}", f"{g.max_abs_difference:.2g}"] for name, g in report.gates.items()]
    table(("task", ">as its\nown model", ">largest\ndifference"), rows)
    say_next("compress", "predict", report.folder, "a text")


def _own_options(to: str, assets: Path | None, given: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return what is wrong with the target and its own options, and these options."""
    pairs = [one.partition("=") for one in given]
    problems = [f"--option {name}: write NAME=VALUE" for name, equals, _ in pairs if not equals]
    own: dict[str, Any] = {name: value for name, equals, value in pairs if equals}
    try:
        target = get_target(to)
        if assets is not None:
            own["assets"] = assets
            if "assets" not in target.options().model_fields:
                takes = [name for name in BUILT_IN if "assets" in get_target(name).options().model_fields]
                raise UserError(f"--assets: --to {to} needs none; it belongs to --to {' and '.join(takes)}")
        if own:
            target.read_options(own)
    except UserError as error:
        problems += error.problems
    return problems, own


def _tuning_problems(goal: str, to: str | None, int8: bool | None, data: str | None) -> list[str]:
    from compress.export.tune import ORDERS

    problems = [] if goal in ORDERS else [f"--tune: got {goal!r}{did_you_mean(goal, ORDERS)}"]
    measured = (*tuned_targets(), *tuned_targets(writes=True))
    if to not in (None, *measured):
        problems.append(f"--tune: measures variants of --to {' and '.join(measured)}, not of {to}")
    if int8 is not None:
        problems.append("--tune: chooses between 8 bits and float itself; leave --int8 and --fp32 out")
    if data is None:
        problems.append("--tune: measures with real texts; add --data")
    return problems


def _show(found: Tuned) -> None:
    heads = ("target", "variant", ">threads", ">MB", ">agreement", ">score", ">ms\nalone", ">texts/s", "")
    rows = []
    out = [trial for trial in found.trials if trial.dropped]
    for trial in [trial for trial in found.trials if not trial.dropped]:
        size = [megabytes(trial.bytes), f"{trial.agreement:.2%}"]
        score = "" if trial.score is None else f"{trial.score:.4f}"
        times = [f"{trial.milliseconds:.2f}", f"{trial.per_second:,.0f}"]
        remark = "kept" if trial is found.chosen else ""
        rows.append([trial.target, trial.variant, str(trial.threads), *size, score, *times, remark])
    table(heads, rows)
    for trial in out:
        prose(f"{trial.place} is out: {trial.dropped}")


def _print(report: ExportReport) -> None:
    figures = {"scheme": report.scheme, "bytes": report.bytes, "float_bytes": report.float_bytes}
    gate = report.gate.to_dict()
    write_json({"folder": str(report.folder), **figures, "gate": gate, "seconds": round(report.seconds, 1)})


def _tell(report: ExportReport, to: str, kind: str) -> None:
    gate = report.gate
    typer.echo(f"wrote {report.folder}: {report.scheme}, {megabytes(report.bytes)} MB")
    seen = f"{gate.examples:,} examples" if gate.examples else "synthetic texts (--data gives examples)"
    typer.echo(
        f"agrees with the model in {gate.agreement:.2%} of the predictions on {seen}; "
        f"largest difference of a logit {gate.max_abs_difference:.2g}"
    )
    for note in report.notes:
        typer.echo(note)
    say_next_trial(report.folder, get_target(to).trial(kind))
