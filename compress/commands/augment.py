"""``compress augment``: a file of examples with changed copies of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.optimize import Label, Text
from compress.commands.run import Json
from compress.terminal.output import write_json
from eval.errors import UserError, did_you_mean, quantity
from eval.kinds.kind_registry import kind_names

if TYPE_CHECKING:
    from compress.augment.block import AugmentBlock


def augment(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, a folder or a hub name.")],
    rule: Annotated[str, typer.Option(help="How texts are changed: tinybert or bilstm.")],
    out: Annotated[Path, typer.Option(help="File of JSON lines to write.")],
    split: Annotated[str, typer.Option(help="Which examples of a folder.")] = "train",
    task: Annotated[str | None, typer.Option(help="Kind of task; by default what the first item looks like.")] = None,
    text: Text = None,
    label: Label = None,
    copies: Annotated[int | None, typer.Option(help="Draws for each example; by default 20, or 10 for pairs.")] = None,
    model: Annotated[str | None, typer.Option(help="tinybert: folder or hub name of a masked-language model.")] = None,
    vectors: Annotated[
        str | None, typer.Option(metavar="FILE", help="tinybert: word vectors as text; by default the model's own.")
    ] = None,
    beside: Annotated[
        bool | None, typer.Option("--beside/--alone", help="tinybert: whether the model sees the whole text too.")
    ] = None,
    replace: Annotated[float | None, typer.Option(help="tinybert: probability of a replacement.")] = None,
    candidates: Annotated[int | None, typer.Option(help="tinybert: words to draw from.")] = None,
    mask: Annotated[float | None, typer.Option(help="bilstm: probability of a mask.")] = None,
    pos: Annotated[float | None, typer.Option(help="bilstm: probability of a word with the same tag.")] = None,
    ngram: Annotated[float | None, typer.Option(help="bilstm: probability of truncation to 1 to 5 words.")] = None,
    mask_word: Annotated[str | None, typer.Option(help="bilstm: what a masked word becomes.")] = None,
    tagger: Annotated[str | None, typer.Option(help="bilstm: a spaCy pipeline, or 'data' for its own tags.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The source of all chance.")] = 13,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    json: Json = False,
) -> None:
    """Write every example and, after it, its changed copies; each copy says where it came from."""
    given = {
        "copies": copies,
        "model": model,
        "vectors": vectors,
        "beside": beside,
        "replace": replace,
        "candidates": candidates,
        "mask": mask,
        "pos": pos,
        "ngram": ngram,
        "mask_word": mask_word,
        "tagger": tagger,
    }
    block = _block({"rule": rule} | {name: value for name, value in given.items() if value is not None})
    if out.exists() and not force:
        raise UserError(f"{out}: is there already; --force replaces it, --out names another file")
    if out.exists() and out.resolve() in _files_of(data):
        raise UserError(f"{out}: is the data itself, which would be lost; --out names another file")
    if not out.parent.is_dir():
        raise UserError(f"{out}: its folder does not exist")
    if task is not None and task not in kind_names():
        raise UserError(f"--task: got {task!r}{did_you_mean(task, kind_names())}")

    from compress.augment.copies import augment as copies_of
    from compress.augment.opening import open_rule
    from compress.augment.text_files import read_examples
    from compress.augment.training_set import write_copies

    examples = read_examples(data, split, task, text, label)
    count = block.copies_of(pair="text_b" in examples[0])
    originals, made = write_copies(out, copies_of(examples, open_rule(block), count, seed))
    if json:
        write_json(
            {"file": str(out), "rule": rule, "seed": seed, "originals": originals, "draws": count, "copies": made}
        )
        return
    draws = quantity(count, "draw")
    typer.echo(f"wrote {out}: {originals:,} examples and {made:,} copies ({draws} each, repeats left out)")


def _files_of(data: str) -> set[Path]:
    """Return the files of local data."""
    from eval.data.sources import find_sources
    from eval.files.paths import user_path

    if not user_path(data).exists():
        return set()
    return {source.path.resolve() for source in find_sources(data, {}).values() if source.path is not None}


def _block(values: dict[str, Any]) -> AugmentBlock:
    from compress.augment.block import AugmentBlock
    from compress.reading.block_reader import BlockReader
    from compress.reading.yaml_places import Document

    reader = BlockReader(Document("arguments", values))
    block = reader.block(AugmentBlock, values, (), "")
    if block is None or reader.problems:
        raise UserError(*reader.problems)
    return block
