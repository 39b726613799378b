"""Examples in docstrings run and print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "benchmarks.data.general_sentences",
    "benchmarks.engines.engine",
    "benchmarks.inference_report",
    "benchmarks.place_facts",
    "compress.architectures.adaptive_depth_network",
    "compress.architectures.k_bert_network",
    "compress.artifact.artifact",
    "compress.comparing.recipe_differences",
    "compress.distill.best_of",
    "compress.distill.components.attention",
    "compress.distill.components.distillation_losses",
    "compress.distill.components.dual_projections",
    "compress.distill.components.hard_negatives",
    "compress.distill.components.query_scores",
    "compress.distill.contrastive",
    "compress.distill.early_exit",
    "compress.distill.embedding",
    "compress.distill.ensemble",
    "compress.distill.listwise",
    "compress.distill.margin_mse",
    "compress.distill.minilm",
    "compress.distill.mobilebert",
    "compress.distill.pkd",
    "compress.distill.tinybert",
    "compress.engine.looks",
    "compress.export.runtime.batch_threads",
    "compress.modules.int8_scheme",
    "compress.modules.low_bit",
    "compress.prune.head_importance",
    "compress.prune.magnitude_ranking",
    "compress.quantize.bit_widths",
    "compress.quantize.gptq",
    "compress.quantize.ranges",
    "compress.recipe.from_yaml",
    "compress.recipe.schema",
    "compress.recipe.to_yaml",
    "compress.registry",
    "compress.search.default_space",
    "compress.search.limit",
    "compress.search.ranges",
    "compress.shortcuts.recommendation",
    "compress.student.student",
    "compress.testing",
    "compress.testing.battery",
    "eval.data.arguments",
    "eval.attribution.agreement_rows",
    "eval.certificate.canonical",
    "eval.cost.size",
    "eval.cost.timing",
    "eval.data.beir",
    "eval.data.columns",
    "eval.data.judging",
    "eval.data.label_notes",
    "eval.data.loading",
    "eval.data.roles",
    "eval.errors",
    "eval.examples",
    "eval.files.typed_json",
    "eval.generation.beam_search",
    "eval.generation.generating",
    "eval.kinds.values",
    "eval.measurement",
    "eval.metrics.correlation",
    "eval.metrics.entities",
    "eval.metrics.label_thresholds",
    "eval.metrics.null_threshold",
    "eval.metrics.own_metric",
    "eval.metrics.ranked_lists",
    "eval.progress.work",
    "eval.proof.many_comparisons",
    "eval.proof.paired_proportions",
    "eval.proof.paired_statistics",
    "eval.proof.power",
    "eval.proof.role",
    "eval.proof.score_interval",
    "eval.ranking.best",
    "eval.ranking.document_set",
    "eval.ranking.index_fields",
    "eval.ranking.indexed",
    "eval.ranking.vector_index",
    "eval.report.plots",
    "eval.scores",
    "eval.task",
    "teachers.attribution.attention_rollout",
    "teachers.losses.ranking",
    "teachers.losses.siamese",
    "teachers.pretraining.objectives.denoising",
    "teachers.pretraining.objectives.directed_head",
    "teachers.pretraining.objectives.prefix_lm",
    "teachers.pretraining.objectives.two_streams",
    "teachers.signals.predictions_file",
    "teachers.signals.predictions_teacher",
    "teachers.training.config",
)
PROMPT = f"{'>' * 3} "


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    """An example imports whatever its own module does not define."""
    monkeypatch.chdir(tmp_path)
    module = import_module(name)
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == name}
    found = [test for test in doctest.DocTestFinder().find(module, globs=own) if test.examples]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for test in found:
        runner.run(test, out=said.append)
    assert found, f"{name} has no example"
    assert not said, "".join(said)


def test_every_example_is_run():
    written = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("benchmarks", "compress", "eval", "teachers")
        for path in (ROOT / package).rglob("*.py")
        if PROMPT in path.read_text(encoding="utf-8")
    }
    assert {name.removesuffix(".__init__") for name in written} == set(MODULES)
