"""ExecuTorch programs, fp32 and int8, of any batch and length; each takes minutes to convert."""

from importlib.util import find_spec

import numpy as np
import pytest

from compress.export import export
from compress.export.runtime.answering import Runtime
from eval.errors import UserError
from eval.inference import predict
from tests.tiny import tiny_task, tiny_taskmodel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("executorch") is None,
        reason="executorch is not installed: pip install 'nlp-compress[executorch]'",
    ),
    # torchao and executorch warn of their own parts when they are imported.
    pytest.mark.filterwarnings("default"),
]


@pytest.mark.parametrize(("kind", "int8"), [("classification", True), ("tagging", False)])
def test_a_program_answers_as_the_model(kind, int8, tmp_path):
    task = tiny_task(kind)
    model = tiny_taskmodel("bert", task.spec)
    report = export(model, tmp_path / "out", "executorch", int8=int8, examples=task.validation, agreement=0.95)
    assert report.exporter == "executorch"
    assert report.gate.agreement >= (0.95 if int8 else 1.0)
    if int8:
        assert report.quantized == {"linear": 19, "tables": 2, "float": ["classifier"]}
        assert 0 < report.gate.max_abs_difference < 0.1
    else:
        assert report.gate.max_abs_difference < 1e-4
    found = Runtime(tmp_path / "out").predict(
        task.validation, batch_size=20
    )  # more than the 8 rows that memory is planned for
    wanted = predict(model, task.validation)
    for one, other in zip(found.logits, wanted.logits, strict=True):
        np.testing.assert_allclose(one, other, atol=0.1 if int8 else 1e-4)
    key = "label" if kind == "classification" else "tags"
    same = [one[key] == other[key] for one, other in zip(found.answers, wanted.answers, strict=True)]
    assert np.mean(same) >= (0.95 if int8 else 1.0)


def test_what_cannot_be_expressed_is_refused_at_once(tmp_path):
    model = tiny_taskmodel("bert", tiny_task("qa").spec)
    with pytest.raises(UserError, match="fixes the batch of a qa head"):
        export(model, tmp_path / "out", "executorch")
