"""A folder as a repository on the Hugging Face hub: what forbids it is said before anything is sent."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from eval.errors import CompressError, UserError
from eval.files.writing import atomic_write
from eval.one_line import first_line
from eval.report.hub_header import HUB_NAME, WORD

logger = logging.getLogger("eval.report.hub_upload")

CARD = "README.md"
PATH = re.compile(r"(?<![\w.:/\\-])(/[\w.@+-]+(?:/[\w.@+-]+)+|[A-Za-z]:\\\w[\w.\\-]*)")
"""What looks like an absolute path; a part of an address is none."""
PERSONAL = ("/home/", "/Users/", "/root/")
"""Begin a path of some machine, if not of this one."""
REFUSED = (401, 403)


def upload(
    folder: Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    license: str | None = None,  # noqa: A002 (the hub's own name)
    token: str | None = None,
) -> str:
    """Upload every file of a folder with a card, in one commit.

    Args:
        folder: The folder.
        name: ``user/name`` of the repository, which is made if it is not there.
        private: Whether a new repository is private; one that is there stays as it is.
        revision: Branch, made if it is not there; by default the main one.
        license: Written into the card, such as ``apache-2.0``; by default the card stays as it is.
        token: By default that of ``HF_TOKEN`` or ``hf auth login``.

    Returns:
        The address.

    Raises:
        UserError: With every reason why it cannot be uploaded: of name, licence, card, token, or because the hub is
            switched off.
        CompressError: If the hub cannot be reached or fails.
    """
    if problems := [*card_problems(folder), *upload_problems(name, license, token)]:
        raise UserError(*problems)
    if license is not None:
        _set_license(folder / CARD, license)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    size = sum(path.stat().st_size for path in files.values()) / 1e6
    kind = "private" if private else "public"
    logger.info("%s: %d files, %.1f MB, to %s (if it is new, %s)", folder, len(files), size, name, kind)
    for file, path in files.items():
        logger.info("  %s, %.1f MB", file, path.stat().st_size / 1e6)
    return _send(files, name, private, revision, token)


def upload_problems(
    name: str,
    license: str | None = None,  # noqa: A002 (the hub's own name)
    token: str | None = None,
) -> list[str]:
    """Return what is wrong with name, licence and token, and that the hub is switched off; nothing is sent."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    problems = []
    try:
        validate_repo_id(name)
        if not HUB_NAME.fullmatch(name):
            raise HFValidationError("it has no user or organisation")
    except HFValidationError as error:
        problems.append(f"{name}: is no name of a repository such as user/name ({first_line(error)})")
    if license is not None and not WORD.fullmatch(license):
        problems.append(f"--license: got {license!r}, must be an identifier such as apache-2.0 or mit")
    if constants.HF_HUB_OFFLINE:
        problems.append(
            "the hub is switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE, or had no address here before; "
            "unset them, or connect and start again, to upload"
        )
    if not (token or get_token()):
        problems.append("there is no token for the hub; run: hf auth login, or set HF_TOKEN")
    return problems


def card_problems(folder: Path) -> list[str]:
    """Return that a folder has no card, and each path of a machine that stands in it."""
    card = folder / CARD
    if not card.is_file():
        return [f"{folder}: has no {CARD}, which the hub shows as its card"]
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [(number, path.rstrip(".")) for number, line in enumerate(lines, start=1) for path in PATH.findall(line)]
    return [
        f"{card}:{number}: names {path}, a path of a machine; take it out before everybody can read it"
        for number, path in found
        if path.startswith(PERSONAL) or path[1] == ":" or Path(path).exists()
    ]


def _set_license(card: Path, license: str) -> None:  # noqa: A002 (the hub's own name)
    from huggingface_hub import ModelCard

    found = ModelCard.load(card, ignore_metadata_errors=True)
    found.data.license = license
    atomic_write(card, str(found).encode())


def _send(files: dict[str, Path], name: str, private: bool, revision: str | None, token: str | None) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined] # httpx's or httpx2's

    api = HfApi(token=token, library_name="nlp-compress")
    try:
        address = str(api.create_repo(name, private=private, exist_ok=True))
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        api.create_commit(
            name,
            [CommitOperationAdd(path_in_repo=file, path_or_fileobj=path) for file, path in files.items()],
            commit_message="Upload a compressed model",
            revision=revision,
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = f"{name}: the hub answered {status}: {error.server_message or first_line(error)}"
        if status in REFUSED:
            raise UserError(f"{said}; the token needs write access to it: hf auth login, or HF_TOKEN") from error
        raise CompressError(said) from error
    except ValueError as error:
        raise UserError(f"{name}: cannot be uploaded: {' '.join(str(error).split())}") from error
    except (HTTPError, OSError) as error:
        raise CompressError(f"{api.endpoint} cannot be reached ({first_line(error)}); try again later") from error
    return address if revision is None else f"{address}/tree/{revision}"
