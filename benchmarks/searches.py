"""Keep what searches found, with the certificates of their winners, and make the page docs/results/search.md.

    COMPRESS_DATA=… COMPRESS_BASE=… compress search compress/recipes/search/sst2.yaml --out runs/search-sst2
    python -m benchmarks.searches runs/search-sst2 …           # records of other searches stay as they are

The certificates lie in benchmarks/results/certificates; ``compress recheck`` computes their statistics again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.archive import RESULTS, commit, keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.search.search_page import FILE
from eval.certificate.contents import Contents
from eval.cost.machine import in_one_line, machine
from eval.errors import UserError
from eval.files.json_text import read_json
from eval.report.under_stress import headings_of, stress_rows
from eval.stress.stress_rows import Stressed
from eval.stress.stress_sentences import stress_sentences

NAME = "searches"
"""Name of the record, and of the part of the page that is made here."""
CERTIFICATES = RESULTS / "certificates"
HAND_MADE = 2
"""The first candidates of a search in the default space: chain-smallest and chain-six-layers."""
HEAD = ("candidate", "what it is", "difference to the teacher [95%]", "MB", "p50 ms", "trained for", "")


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what is kept of a finished search; certificates of winners that are shown to be as good are copied.

    Where none is shown, the certificate of the best says so.

    Raises:
        UserError: If the search is not over.
    """
    known = read_json(folder / FILE)
    if not known["ended"]:
        raise UserError(f"{folder}: the search is not over; go on with compress search … --out {folder} --resume")
    name = known["budget"]["name"]
    certified = [one for one in known["winners"] if one.get("verdict") == "non-inferior"]
    for winner in certified or known["winners"][:1]:
        if winner["certificate"]:
            CERTIFICATES.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / winner["certificate"], certificate_of(name, winner["key"]))
    candidates = sorted(known["candidates"], key=lambda one: one["number"])
    fields = ("number", "key", "label", "score", "difference", "costs", "share")
    by_hand = [one["key"] for one in candidates[:HAND_MADE]] if known["budget"].get("space") is None else []
    shown = [one for one in candidates if one["difference"] and (one["share"] == 1 or one["key"] in by_hand)]
    return {
        **{key: known[key] for key in ("teacher", "outcome", "spent", "front")},
        "limits": known["budget"]["limits"],
        "winners": [one["key"] for one in known["winners"]],
        "hand_made": by_hand,
        "candidates": [{key: one[key] for key in fields} for one in shown],
        "commit": commit(),
        "machine": machine(),
    }


def certificate_of(name: str, key: str) -> Path:
    """Return where the certificate of a search's winner is kept."""
    return CERTIFICATES / f"{name}-{key}.cert"


def report(found: Mapping[str, Any]) -> str:
    """Return the part of the page: for each search its limits, its front with the chains made by hand, its outcome."""
    parts = []
    for name, own in sorted(found["searches"].items()):
        title = f"**{name}**: {'; '.join(own['limits'])}"
        split = f"Candidates are compared on {own['teacher']['split']} (teacher: {own['teacher']['score']:.4f})."
        after = f"{own['spent']}. {in_one_line(own['machine'])}; commit {own['commit']}."
        parts += [title, table(own), f"{split} {' '.join(own['outcome'])}", after]
        for key in own["winners"]:
            parts += under_stress(certificate_of(name, key))
    return "\n\n".join(parts)


def table(own: Mapping[str, Any]) -> str:
    """Return the front of a search, and the chains made by hand wherever they stand, as Markdown."""
    kept = [one for one in own["candidates"] if one["key"] in {*own["front"], *own["hand_made"]}]
    rows = [list(HEAD)]
    for one in sorted(kept, key=lambda one: one["costs"]["bytes"]):
        value, low, high = one["difference"]
        said = [word for word, keys in _roles(own).items() if one["key"] in keys]
        p50 = one["costs"]["p50_ms"]  # none where the budget asks for no time
        costs = [f"{one['costs']['bytes'] / 1e6:.1f}", "" if p50 is None else f"{p50:.2f}", f"{one['share']:.0%}"]
        cells = [one["key"], one["label"], f"{value:+.4f} [{low:+.4f}, {high:+.4f}]", *costs, ", ".join(said)]
        rows.append(cells)
    return markdown_table(rows)


def under_stress(place: Path) -> list[str]:
    """Return the table of perturbed texts that a certificate holds, and what it comes to; nothing without one."""
    if not place.is_file():
        return []
    main = Contents.from_bytes(place.read_bytes()).main
    if main.stress is None:
        return []
    rows = TypeAdapter(tuple[Stressed, ...]).validate_python(main.stress.rows)
    return stressed(rows, main.candidate.name, main.fixed.reference)


def stressed(rows: Sequence[Stressed], candidate: str, reference: str) -> list[str]:
    """Return what the rows of perturbed texts come to, and their table."""
    said = ". ".join(stress_sentences(rows, candidate, reference))
    return [f"{said}.", markdown_table([headings_of(candidate, reference), *stress_rows(rows)])]


def _roles(own: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    return {"front": own["front"], "winner": own["winners"], "made by hand": own["hand_made"]}


def main() -> None:
    """Keep the searches in some folders, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of finished searches")
    given = parser.parse_args()
    place = RESULTS / f"{NAME}.json"
    known = json.loads(place.read_text(encoding="utf-8"))["searches"] if place.is_file() else {}
    for folder in given.folders:
        known[read_json(folder / FILE)["budget"]["name"]] = facts_of(folder)
    fill(DOCS / "search.md", NAME, report(keep(NAME, {"searches": known})))


if __name__ == "__main__":
    main()
