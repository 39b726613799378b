"""``compress push``: a model folder or an export to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A model folder, such as RUN/model, or an export such as RUN/onnx.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="user/name of the repository.")],
    public: Annotated[
        bool, typer.Option("--public/--private", help="Whether everybody may read a repository that is new.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; by default the main one.")] = None,
    license: Annotated[  # noqa: A002 (the hub's own name)
        str | None, typer.Option(metavar="ID", help="Licence to write into the card, such as apache-2.0.")
    ] = None,
) -> None:
    """Upload a model or an export with its card, once its files were found to be those that were written.

    The token is that of HF_TOKEN or of 'hf auth login'.
    """
    from compress.publishing import push_to_hub

    typer.echo(push_to_hub(folder, name, private=not public, revision=revision, license=license))
