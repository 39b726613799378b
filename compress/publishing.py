"""Model folders and exports on the Hugging Face hub; only what is whole is uploaded."""

from __future__ import annotations

from pathlib import Path

from eval.errors import UserError


def push_to_hub(
    folder: str | Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    license: str | None = None,  # noqa: A002 (the hub's own name)
    token: str | None = None,
) -> str:
    """Upload a model folder or an export with its card, once its files were found to be those that were written.

    Args:
        folder: An artifact, such as ``model`` in the folder of a run, or an export.
        name: ``user/name`` of the repository, which is made if it is not there.
        private: Whether a new repository is private; one that is there stays as it is.
        revision: Branch, made if it is not there; by default the main one.
        license: Written into the card, such as ``apache-2.0``; by default the card stays as it is.
        token: By default that of ``HF_TOKEN`` or ``hf auth login``.

    Returns:
        The address.

    Raises:
        UserError: With every reason why it cannot be uploaded: of folder, name, card or token.
        CompressError: If the hub cannot be reached or fails.
    """
    from eval.report.hub_upload import upload, upload_problems

    folder = Path(folder)
    if problems := damages(folder):
        raise UserError(*problems, *upload_problems(name, license, token))
    return upload(folder, name, private=private, revision=revision, license=license, token=token)


def damages(folder: Path) -> list[str]:
    """Return what is wrong with the files of a model folder or an export, or that it is neither."""
    from compress.artifact.artifact import load
    from compress.artifact.store import is_artifact
    from compress.export.runtime.manifest import MANIFEST

    try:
        if is_artifact(folder):
            load(folder)
            return []
    except UserError as error:
        return list(error.problems)
    if (folder / MANIFEST).is_file():
        return _damages_of_export(folder)
    inside = sorted(path.name for path in folder.iterdir() if _is_ours(path)) if folder.is_dir() else []
    if inside:
        return [f"{folder}: is the folder of a run; push one of {', '.join(inside)} in it"]
    return [f"{folder}: is no model folder with lineage.json and no export; give one that this toolkit wrote"]


def _is_ours(path: Path) -> bool:
    from compress.artifact.store import is_artifact
    from compress.export.runtime.manifest import MANIFEST

    return is_artifact(path) or (path / MANIFEST).is_file()


def _damages_of_export(folder: Path) -> list[str]:
    from compress.export.check.golden_vectors import FILE
    from compress.export.runtime.manifest import whole_manifest, wrong_file
    from compress.export.targets.library import ExportError

    try:
        manifest = whole_manifest(folder)
    except ExportError as error:
        return str(error).splitlines()
    beside = manifest.get("beside") or {}
    found = [problem for name in beside for problem in wrong_file(folder, name, beside[name])]
    problems = [f"{folder}: damaged export: {'; '.join(found)}; copy or export it again"] if found else []
    if FILE not in manifest["files"]:
        problems.append(
            f"{folder}: has no {FILE} to check a runtime with; it is of an earlier version, export it again"
        )
    return problems
