"""The program for Ray Data of docs/deploy.md, as it stands there, on a local cluster of two nodes.

Ray brings many packages, so it runs in a Python of its own, which needs numpy, tokenizers and onnxruntime beside it.
"""

import json
import os
import re
import subprocess

import pytest

from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from tests.tiny import tiny_task, tiny_taskmodel
from tests.unit.test_deploy import section

PYTHON = os.environ.get("COMPRESS_RAY_PYTHON")
CLUSTER = """
import os, runpy, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
cluster.add_node(num_cpus=2)
os.environ["RAY_ADDRESS"] = cluster.address
runpy.run_path(sys.argv[1], run_name="__main__")  # what is in __main__ is sent to workers by its source
import ray

print(len([node for node in ray.nodes() if node["Alive"]]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="COMPRESS_RAY_PYTHON names no Python that has ray[data] and onnxruntime")
def test_two_workers_of_a_cluster_predict_every_line(tmp_path):
    task = tiny_task("classification")
    folder = tmp_path / "export"
    export_onnx(tiny_taskmodel("bert", task.spec), folder, examples=task.validation)
    texts = [f"good film {number} " * (number % 5 + 1) for number in range(10_000)]
    (tmp_path / "reviews.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", section("All cores, and clusters"), flags=re.DOTALL)[0]
    code = code.replace("/models/sst2-int8", str(folder)).replace("/data/", f"{tmp_path}/")
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    command = [str(PYTHON), "-c", CLUSTER, str(tmp_path / "program.py")]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        start_new_session=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "2"
    written = [file.read_text(encoding="utf-8") for file in (tmp_path / "predictions").iterdir()]
    rows = [json.loads(line) for text in written for line in text.splitlines()]
    found = {row["text"]: (row["label"], row["probability"]) for row in rows}
    assert len(rows) == len(found) == len(texts)
    for text, answer in zip(texts, Runtime(folder).predict(texts).answers, strict=True):
        label, probability = found[text]
        assert label == answer["label"]
        assert probability == pytest.approx(answer["probability"], abs=1e-5)
