"""Programs and npm packages for tests in Node.js and in a real browser; without them the tests are skipped."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from eval.files.home import home
from eval.files.writing import atomic_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSTALL = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")


@pytest.fixture(scope="session")
def modules():
    """The folder ``node_modules`` with the packages of ``package.json``, installed once for each content of it."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    wanted = (HERE / "package.json").read_bytes()
    folder = home() / "javascript" / hashlib.sha256(wanted).hexdigest()[:16]
    if not folder.is_dir():
        with atomic_folder(folder, "npm packages") as beside:
            (beside / "package.json").write_bytes(wanted)
            done = subprocess.run(INSTALL, cwd=beside, capture_output=True, text=True, check=False, timeout=600)
            if done.returncode:
                pytest.skip(f"npm cannot install the packages: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "node_modules"


@pytest.fixture(scope="session")
def chromium():
    """The path of a Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return found or pytest.skip("chromium is not installed")


@pytest.fixture
def node(modules, tmp_path):
    """Run a program, given as a file or as its text, beside the packages; its input and output are JSON."""
    (tmp_path / "node_modules").symlink_to(modules)

    def run(program, given=None):
        file = tmp_path / "program.mjs"
        file.write_text(program.read_text("utf-8") if isinstance(program, Path) else program, "utf-8")
        text = json.dumps(given)
        done = subprocess.run(
            ["node", file.name], cwd=tmp_path, input=text, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture
def browse(node, chromium, tmp_path):
    """Open pages of a folder in Chromium; each is the name of the page and what ``browser.mjs`` is to do there."""

    def run(folder, pages):
        handler = functools.partial(_Quiet, directory=str(folder))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            host = f"http://127.0.0.1:{server.server_port}/"
            visits = [{**page, "url": host + name} for name, page in pages.items()]
            given = {"chromium": chromium, "profile": str(tmp_path / "profile"), "pages": visits}
            found = node(HERE / "browser.mjs", given)
            server.shutdown()
        for page in found:
            assert {url[: len(host)] for url in page["requests"]} == {host}, page["requests"]
        return found

    return run


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def varied(model, examples):
    """Move the bias of a random tagger so that no tag outweighs the others everywhere; return it."""
    import torch

    from eval.inference import predict

    mean = np.concatenate(predict(model, examples).logits).mean(axis=0)
    last = [part for part in model.model.modules() if isinstance(part, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.bias -= torch.from_numpy(mean)
    return model


def programs(language):
    """Return the programs of ``docs/deploy.md`` in a language, in order."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
