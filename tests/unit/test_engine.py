"""The engine: refusals before compute, records, resume, and artifacts that reload bit for bit."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModel

from compress.artifact.artifact import Artifact, load
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.engine.steps import dry_run, run
from compress.prune.layers import LayerPruning
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import CompressError, UserError
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import tiny_task, tiny_taskmodel

CUT_AND_DISTIL = (LayerPruning(keep=(0, 2)), LogitDistillation(temperature=2.0, alpha=0.9, epochs=1))


@pytest.fixture
def task():
    return tiny_task("classification")


@pytest.fixture
def teacher(task):
    return tiny_taskmodel("bert", task.spec)


@pytest.fixture
def inputs(task, teacher, tmp_path):
    return Inputs(
        train=task.train, validation=task.validation, teacher=ModelTeacher(teacher, cache=tmp_path / "signals")
    )


def test_every_step_leaves_a_complete_record(teacher, inputs):
    result = run(Recipe(seed=3, steps=CUT_AND_DISTIL), teacher, inputs)
    source, cut, distilled = result.lineage
    assert (source.technique, cut.technique, distilled.technique) == ("source", "prune.layers", "distill.logits")
    assert cut.weights_before == source.weights_after
    assert distilled.weights_before == cut.weights_after
    assert distilled.weights_after == result.digest
    assert cut.facts["layers"] == [0, 2]
    assert cut.size_after["parameters"] < cut.size_before["parameters"] == source.size_after["parameters"]
    assert distilled.config["temperature"] == 2.0
    assert distilled.config["training"]["epochs"] == 1
    assert distilled.data == {"train": inputs.train.digest, "validation": inputs.validation.digest}
    assert distilled.teacher == inputs.teacher.digest
    assert (cut.seed, distilled.seed) == (3, 4)
    assert distilled.facts["history"][-1]["score"] <= 1
    assert set(distilled.libraries) == {"torch", "transformers", "tokenizers", "numpy"}
    assert "prune.layers" in result.history()


def test_the_source_and_the_random_state_stay(teacher, inputs):
    before = {name: tensor.clone() for name, tensor in teacher.model.state_dict().items()}
    state = torch.get_rng_state()
    run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not teacher.model.training


def test_the_same_recipe_gives_the_same_weights(teacher, inputs):
    digests = {run(Recipe(seed=5, steps=CUT_AND_DISTIL), teacher, inputs).digest for _ in range(2)}
    assert len(digests) == 1
    assert run(Recipe(seed=6, steps=CUT_AND_DISTIL), teacher, inputs).digest not in digests


def test_all_mistakes_come_at_once_before_any_compute(teacher, monkeypatch):
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(UserError) as caught:
        run(Recipe(steps=(LayerPruning(keep=(7,)), LogitDistillation())), teacher, Inputs())
    text = "\n".join(caught.value.problems)
    assert "step 1, prune.layers: the model has layers 0 to 2, so [7] cannot be kept" in text
    assert "step 2, distill.logits: needs a teacher" in text
    assert "step 2, distill.logits: needs a task with training data" in text


def test_a_failure_shows_in_the_rehearsal(teacher, inputs):
    broken = tiny_taskmodel("bert", teacher.task)
    with torch.no_grad():
        broken.model.classifier.bias.fill_(float("inf"))
    with pytest.raises(CompressError, match=r"step 1, prune.layers \(in the dry run\): .*no longer finite"):
        run(Recipe(steps=CUT_AND_DISTIL), broken, inputs)


@pytest.mark.parametrize("teachers", [1, 2])
def test_a_dry_run_leaves_nothing_in_the_cache(teacher, task, tmp_path, teachers):
    cache = tmp_path / "signals"
    members = tuple(ModelTeacher(teacher, cache=cache) for _ in range(teachers))
    source = members[0] if teachers == 1 else EnsembleTeacher(members)
    dry_run(Recipe(steps=CUT_AND_DISTIL), Artifact.from_model(teacher), Inputs(train=task.train, teacher=source))
    assert not cache.exists()


def test_finished_steps_are_not_run_again(teacher, inputs, tmp_path, monkeypatch):
    first = run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs, folder=tmp_path / "run")
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a finished step ran again"))
    again = run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs, folder=tmp_path / "run")
    assert again.digest == first.digest
    assert again.lineage == first.lineage


def test_another_recipe_does_not_take_over_a_folder(teacher, inputs, tmp_path):
    run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs, folder=tmp_path / "run")
    with pytest.raises(UserError, match="holds the result of another run"):
        run(Recipe(seed=99, steps=CUT_AND_DISTIL), teacher, inputs, folder=tmp_path / "run")


def test_a_kept_step_of_something_else_is_made_anew_if_that_is_wanted(teacher, inputs, tmp_path):
    first = run(Recipe(steps=CUT_AND_DISTIL[:1]), teacher, inputs, folder=tmp_path)
    other = Recipe(steps=(LayerPruning(keep=(1,)),))
    with pytest.raises(UserError, match=r"another run \(config differ\)"):
        run(other, teacher, inputs, folder=tmp_path)
    again = run(other, teacher, inputs, folder=tmp_path, anew=True)
    assert again.digest == load(tmp_path / "1-prune.layers").digest != first.digest


def test_a_checkpoint_of_another_teacher_or_other_validation_is_of_another_training(teacher, inputs, task, monkeypatch):
    told = []
    monkeypatch.setattr("teachers.training.loop.train", lambda *_args, **more: told.append(more["identity"]) or [])
    other = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=9))
    for given in (inputs, inputs, replace(inputs, teacher=other), replace(inputs, validation=task.validation[:5])):
        LogitDistillation().train(teacher, given, None, torch.Generator())
    assert told[0] == told[1]
    assert len(set(told)) == 3


def test_an_interrupted_training_counts_its_earlier_updates(teacher, inputs):
    record = run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs).lineage[-1]
    assert record.total_seconds == record.seconds >= sum(row["seconds"] for row in record.facts["history"])
    later = record.model_copy(update={"seconds": 0.0})
    assert 0 < later.total_seconds < record.seconds


def test_a_changed_file_is_another_run(teacher, inputs, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("good film\n")
    recipe = Recipe(steps=(VocabularyPruning(files=(str(corpus),)),))
    first = run(recipe, teacher, inputs, folder=tmp_path / "run")
    assert run(recipe, teacher, inputs, folder=tmp_path / "run").digest == first.digest
    corpus.write_text("bad film\n")
    with pytest.raises(UserError, match=r"another run \(data differ\)"):
        run(recipe, teacher, inputs, folder=tmp_path / "run")


def test_a_saved_artifact_reloads_bit_for_bit_in_a_fresh_process(teacher, inputs, task, forker, tmp_path):
    result = run(Recipe(steps=CUT_AND_DISTIL), teacher, inputs)
    folder = result.save(tmp_path / "small")
    assert load(folder).lineage == result.lineage
    code = (
        "import sys, numpy as np; from compress import load; from eval.inference import predict\n"
        "a = load(sys.argv[1]); print(a.digest)\n"
        "texts = [{'text': t} for t in sys.argv[2:]]\n"
        "np.save(sys.argv[1] + '/out.npy', np.stack(predict(a, texts).logits))"
    )
    texts = [example["text"] for example in task.validation[:5]]
    printed = forker.program(code, str(folder), *texts, cwd=tmp_path)
    assert printed.strip() == result.digest
    from eval.inference import predict

    own = np.stack(predict(result, [{"text": text} for text in texts]).logits)
    assert np.allclose(np.load(folder / "out.npy"), own, atol=1e-6)


def test_saving_replaces_models_alone(teacher, tmp_path):
    artifact = Artifact.from_model(teacher)
    (tmp_path / "work").mkdir()
    thesis, note = tmp_path / "work" / "thesis.txt", tmp_path / "note.txt"
    for file in (thesis, note):
        file.write_text("years of work")
    for place in (thesis.parent, note):
        with pytest.raises(UserError, match="is there already and no model"):
            artifact.save(place)
    assert (thesis.read_text(), note.read_text()) == ("years of work",) * 2
    for _ in range(2):
        artifact.save(tmp_path / "model")


def test_saving_replaces_only_when_all_is_written(teacher, tmp_path, monkeypatch):
    artifact = Artifact.from_model(teacher)
    folder = artifact.save(tmp_path / "model")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compress.artifact.store.save_taskmodel", full)
    with pytest.raises(CompressError, match=r"the disk is full \(.+\); free some space"):
        artifact.save(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(folder).digest == artifact.digest


def test_a_gap_in_the_lineage_is_an_error(teacher, inputs, tmp_path):
    folder = run(Recipe(steps=(LayerPruning(), LabelTraining(max_steps=1))), teacher, inputs).save(tmp_path / "m")
    values = json.loads((folder / "lineage.json").read_text())
    del values["records"][1]
    (folder / "lineage.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="does not follow from the one before"):
        load(folder)


def test_exchanged_weights_are_noticed(teacher, inputs, tmp_path):
    folders = [
        run(Recipe(seed=seed, steps=(LabelTraining(max_steps=2),)), teacher, inputs).save(tmp_path / str(seed))
        for seed in (1, 2)
    ]
    weights = folders[1] / "model.safetensors"
    (folders[0] / "model.safetensors").write_bytes(weights.read_bytes())
    with pytest.raises(UserError, match=r"the weights are not those that lineage\.json records"):
        load(folders[0])


@pytest.mark.parametrize("size", [0, 7, 1000])
def test_truncated_weights_are_one_message(teacher, tmp_path, size):
    folder = Artifact.from_model(teacher).save(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(UserError, match=r"the weights could not be read .*is the folder complete\?"):
        load(folder)


def test_a_tokenizer_of_another_model_is_refused(teacher, tmp_path):
    save_taskmodel(teacher, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    other = copy.deepcopy(teacher.tokenizer)
    other.add_tokens([f"new{i}" for i in range(config["vocab_size"])])
    other.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="they do not belong together"):
        load_taskmodel(tmp_path)


def test_an_artifact_with_other_labels_is_refused(teacher, tmp_path):
    folder = Artifact.from_model(teacher).save(tmp_path / "m")
    spec = teacher.task.model_copy(update={"labels": ("sad", "glad")})
    with pytest.raises(UserError, match=r"answers \['bad', 'good'\], the task asks for \['sad', 'glad'\]"):
        Artifact.from_pretrained(folder, spec)


def test_a_classifier_is_no_base_for_numbers_but_its_encoder_is(teacher, tmp_path):
    folder, numbers = tmp_path / "classifier", tiny_task("regression", pair=True).spec
    folder.mkdir()
    save_taskmodel(teacher, folder)
    with pytest.raises(UserError, match=r"answers \['bad', 'good'\], the task asks for a number; for a new head"):
        Artifact.from_pretrained(folder, numbers)
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "encoder")
    teacher.tokenizer.save_pretrained(tmp_path / "encoder")
    assert Artifact.from_pretrained(tmp_path / "encoder", numbers).task == numbers


def test_training_fields_may_stand_beside_the_own_ones():
    short = LogitDistillation(temperature=3.0, epochs=7, learning_rate=1e-3)
    long = LogitDistillation.model_validate({"temperature": 3.0, "training": {"epochs": 7, "learning_rate": 1e-3}})
    assert short == long
    assert short.training.epochs == 7


def test_distilbert_refuses_another_width(teacher, task, tmp_path):
    wide = tiny_taskmodel("bert", task.spec, hidden_size=64)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(wide, cache=tmp_path))
    with pytest.raises(UserError, match="the cosine needs equal hidden sizes, the student has 32 and the teacher 64"):
        run(Recipe(steps=(DistilBertDistillation(max_steps=1),)), teacher, inputs)
