"""What is recorded of a model beside its weights: its config, its tokenizer, its task; by content, and file by file."""

import json
from dataclasses import replace

import pytest

from compress.artifact.artifact import Artifact, load
from compress.artifact.record import SAVED
from compress.engine.steps import run
from compress.prune.heads import HeadPruning
from compress.prune.layers import LayerPruning
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.student.student import Student
from compress.technique import Inputs
from eval.errors import UserError
from teachers.file_digests import COVERED, digests_of, file_digests
from teachers.finetuning.finetune import FACTS, config_identity, finetune, key_of
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import FAMILIES, tiny_spec, tiny_task, tiny_taskmodel


@pytest.fixture
def teacher():
    return tiny_taskmodel("bert", tiny_spec())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_rendered_without_weights_is_what_is_saved(family, tmp_path):
    model = tiny_taskmodel(family, tiny_spec())
    save_taskmodel(model, tmp_path)
    found = file_digests(tmp_path)
    assert digests_of(model) == found
    assert set(found) >= {"config.json", "task.json", "tokenizer.json", "tokenizer_config.json"}
    assert set(found) <= set(COVERED)
    assert digests_of(load_taskmodel(tmp_path)) == found


@pytest.mark.parametrize(
    "step", [LayerPruning(keep=(0, 2)), HeadPruning(heads={0: (1,)}), VocabularyPruning()], ids=lambda step: step.name
)
def test_every_record_says_what_came_out_and_a_folder_agrees_with_the_last(step, teacher, tmp_path):
    task = tiny_task("classification")
    result = run(Recipe(steps=(step,)), teacher, Inputs(train=task.train, calibration=task.train))
    folder = result.save(tmp_path / "m")
    assert result.lineage[0].files == digests_of(teacher)
    assert result.lineage[1].files == file_digests(folder)
    changed = {name for name, digest in result.lineage[1].files.items() if result.lineage[0].files.get(name) != digest}
    assert (
        changed
        == {
            "prune.layers": {"config.json"},
            "prune.heads": {"config.json", "structure.json"},
            "prune.vocabulary": {"config.json", "tokenizer.json"},
        }[step.name]
    )
    assert load(folder).lineage == result.lineage
    assert load(load(folder).save(tmp_path / "again")).lineage == result.lineage


def test_a_student_is_recorded_with_the_task_that_it_gets(teacher, tmp_path):
    source = Artifact.from_model(teacher).save(tmp_path / "source")
    asked = replace(teacher, task=teacher.task.model_copy(update={"max_length": 16}))
    student = Student.model_validate({"from": str(source), "layers": 2}).build(Artifact.from_model(asked))
    assert student.task.max_length == 16
    assert [record.technique for record in load(student.save(tmp_path / "m")).lineage] == ["source", "student"]


def test_what_changed_without_a_step_gets_a_record_of_its_own(teacher, tmp_path):
    artifact = Artifact.from_model(teacher)
    artifact.model.config.layer_norm_eps = 0.5
    found = load(artifact.save(tmp_path / "m"))
    assert [record.technique for record in found.lineage] == ["source", SAVED]
    assert found.lineage[-1].facts == {"files": ["config.json"]}
    assert found.lineage[-1].weights_before == found.lineage[-1].weights_after == artifact.digest


def test_an_artifact_of_an_earlier_version_is_covered_once_it_is_saved_again(teacher, tmp_path, caplog):
    folder = Artifact.from_model(teacher).save(tmp_path / "m")
    file = folder / "lineage.json"
    row = json.loads(file.read_text())["records"][0]
    plain = {key: value for key, value in row.items() if key not in ("files", "previous", "digest")}
    file.write_text(json.dumps({"format": 1, "records": [plain]}))
    again = load(folder).save(tmp_path / "again")
    assert "covers the weights alone" in caplog.text
    caplog.clear()
    assert load(again).lineage[-1].files == file_digests(again)
    assert not caplog.text


def test_a_step_that_was_kept_is_not_taken_for_another_config(teacher, tmp_path):
    recipe = Recipe(steps=(LayerPruning(keep=(0, 2)),))
    run(recipe, teacher, folder=tmp_path)
    other = tiny_taskmodel("bert", teacher.task, hidden_act="relu")
    assert other.digest == teacher.digest
    with pytest.raises(UserError, match=r"holds the result of another run \(config\.json of the model before"):
        run(recipe, other, folder=tmp_path)


@pytest.mark.parametrize("name", ["config.json", "task.json", "tokenizer.json"])
def test_a_kept_teacher_is_refused_once_a_file_was_changed(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    task = tiny_task("classification")
    _, folder = finetune(tiny_taskmodel("bert", task.spec), task)
    values = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(values | {"changed": 1}))
    with pytest.raises(UserError, match=rf"{name}: is not the file that teacher\.json records.*train it anew"):
        finetune(tiny_taskmodel("bert", task.spec), task)


def test_bases_with_equal_weights_and_other_configs_make_teachers_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    folders = []
    for activation in ("gelu", "relu"):
        base = tmp_path / activation
        base.mkdir()
        save_taskmodel(tiny_taskmodel("bert", task.spec, hidden_act=activation), base)
        folders.append(finetune(base, task)[1])
    assert folders[0] != folders[1]
    assert [load_taskmodel(folder).model.config.hidden_act for folder in folders] == ["gelu", "relu"]


def test_a_teacher_from_before_the_config_was_in_its_key_is_found_if_it_has_this_config(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    for activation in ("gelu", "relu"):
        (tmp_path / activation).mkdir()
        save_taskmodel(tiny_taskmodel("bert", task.spec, hidden_act=activation), tmp_path / activation)
    _, folder = finetune(tmp_path / "gelu", task)
    facts = json.loads((folder / FACTS).read_text())
    assert facts["identity"].pop("config") == json.loads(
        json.dumps(config_identity(load_taskmodel(tmp_path / "gelu", task.spec)))
    )
    earlier = folder.rename(folder.with_name(f"classification-{key_of(facts['identity'])}"))
    assert finetune(tmp_path / "gelu", task)[1] == earlier
    assert finetune(tmp_path / "relu", task)[1] != earlier


def test_the_digest_of_a_teacher_covers_its_config():
    one, other = (tiny_taskmodel("bert", tiny_spec(), hidden_act=name) for name in ("gelu", "relu"))
    assert one.digest == other.digest
    assert ModelTeacher(one).digest != ModelTeacher(other).digest


def test_the_digest_of_a_teacher_is_the_same_once_it_is_loaded_again(teacher, tmp_path):
    save_taskmodel(teacher, tmp_path)
    assert ModelTeacher(load_taskmodel(tmp_path)).digest == ModelTeacher(teacher).digest
