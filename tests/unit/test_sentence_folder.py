"""Folders of sentence-transformers: what they say is honoured or refused, and what is saved opens in that library."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compress.artifact.artifact import Artifact, load_model
from eval.data.loading import load_task
from eval.errors import UserError
from eval.inference import predict
from eval.task import TaskSpec
from teachers.sentence_folder import said_by
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_taskmodel

TEXTS = ["good film", "a sad and very dull song", "the day " * 40]
PARTS = ("Transformer", "Pooling", "Normalize")


def vectors(model, texts=TEXTS):
    return np.stack([rows[0] for rows in predict(model, [{"text": text} for text in texts]).logits])


def foreign(folder, family="bert", pooling=None, parts=PARTS, limits=None, more=None):
    """Write a folder as the library does, around a tiny network, and nothing of ours."""
    model = tiny_taskmodel(family, tiny_spec("embedding"))
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    paths = [f"{place}_{part}" if place else "" for place, part in enumerate(parts)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{part}"}
        for place, (part, path) in enumerate(zip(parts, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    told = pooling or {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(told))
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits or {"max_seq_length": 24}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(more or {}))
    return folder


class TestReading:
    @pytest.mark.parametrize(
        ("told", "pooling"),
        [
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
            ({"pooling_mode_max_tokens": True}, "max"),
            ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
            ({"pooling_mode": "lasttoken"}, "last"),
            ({"embedding_dimension": 32, "pooling_mode": ["mean"]}, "mean"),
        ],
    )
    def test_what_a_task_leaves_open_the_folder_says(self, told, pooling, tmp_path):
        prompts = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "query"}
        parts = PARTS[:2] if pooling == "max" else PARTS
        foreign(tmp_path, pooling=told, parts=parts, more=prompts)
        said = {"pooling": pooling, "normalize": pooling != "max", "prompt": "find: ", "max_length": 24}
        data = [{"text_a": "x", "text_b": "y", "label": 1.0}]
        for task in (None, TaskSpec(kind="embedding", metric="spearman"), load_task("embedding", data).spec):
            found = load_model(tmp_path, task).task
            assert {name: getattr(found, name) for name in said} == said

    def test_the_head_of_the_base_does_not_make_it_a_language_model(self, tmp_path):
        foreign(tmp_path)  # as all-mpnet-base-v2 is: its config names the class of the base that it was trained from
        config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = load_model(tmp_path)
        assert (found.task.kind, found.task.max_length) == ("embedding", 24)
        assert vectors(found).shape == (3, 32)

    def test_the_tasks_own_length_counts(self, tmp_path):
        foreign(tmp_path)
        data = [{"text_a": "x", "text_b": "y", "label": 1.0}]
        assert load_model(tmp_path, load_task("embedding", data, max_length=8).spec).task.max_length == 8
        assert load_taskmodel(tmp_path).encoder.settings.max_length == 24

    def test_a_prompt_stands_before_each_text(self, tmp_path):
        plain = load_taskmodel(foreign(tmp_path / "plain"))
        told = {"prompts": {"query": "a good "}, "default_prompt_name": "query"}
        prompted = load_taskmodel(foreign(tmp_path / "prompted", more=told))
        assert np.array_equal(vectors(prompted, ["film"]), vectors(plain, ["a good film"]))
        pair = predict(prompted, [{"text_a": "film", "text_b": "day"}]).logits[0]
        assert np.allclose(pair, vectors(plain, ["a good film", "a good day"]), atol=1e-6)

    @pytest.mark.parametrize(
        ("prompts", "default", "prompt", "query", "document"),
        [
            ({"query": "query: ", "document": "passage: "}, None, "", "query: ", "passage: "),
            ({"query": "query: ", "passage": "passage: "}, None, "", "query: ", "passage: "),
            ({"query": "query: ", "document": "", "corpus": "text: "}, None, "", "query: ", "text: "),
            ({"query": "find: "}, None, "", "find: ", ""),
            ({"query": "find: ", "document": ""}, "query", "find: ", "find: ", ""),
            ({"query": "find: "}, "query", "find: ", "find: ", ""),
            ({"passage": "p: ", "other": "o: "}, "other", "o: ", "", "p: "),
            ({"query": "", "document": "", "text": "t: "}, "text", "t: ", None, None),
            ({"query": "t: ", "document": "t: "}, "query", "t: ", None, None),
            ({"clustering": "c: "}, None, "", None, None),
        ],
    )
    def test_queries_and_documents_have_the_prompts_that_the_library_takes(
        self, prompts, default, prompt, query, document, tmp_path
    ):
        foreign(tmp_path / "theirs", more={"prompts": prompts, "default_prompt_name": default})
        model = load_model(tmp_path / "theirs", tiny_spec("retrieval"))
        expected = (prompt, query, document)
        assert (model.task.prompt, model.task.query_prompt, model.task.document_prompt) == expected
        Artifact.from_model(model).save(tmp_path / "ours")
        for task in (None, tiny_spec("retrieval")):
            again = load_model(tmp_path / "ours", task).task
            assert (again.prompt, again.query_prompt, again.document_prompt) == expected
        written = json.loads((tmp_path / "ours" / "config_sentence_transformers.json").read_text())["prompts"]
        assert written["query"] == (prompt if query is None else query)
        assert written["document"] == (prompt if document is None else document)

    def test_another_vector_than_the_folders_is_refused(self, tmp_path):
        foreign(tmp_path, more={"prompts": {"query": "find: "}, "default_prompt_name": "query"})
        wanted = TaskSpec(kind="embedding", metric="spearman", pooling="first", normalize=False, prompt="look: ")
        with pytest.raises(UserError, match='write pooling: mean, normalize: true, prompt: "find: " into the task'):
            load_model(tmp_path, wanted)

    def test_what_cannot_be_honoured_is_refused_by_name_and_all_at_once(self, tmp_path):
        foreign(
            tmp_path,
            pooling={"pooling_mode_mean_sqrt_len_tokens": True, "include_prompt": False},
            parts=("Transformer", "Pooling", "Dense"),
            limits={"max_seq_length": 24, "do_lower_case": True},
            more={
                "prompts": {"query": "find: "},
                "default_prompt_name": "query",
                "similarity_fn_name": "euclidean",
            },
        )
        with pytest.raises(UserError) as caught:
            load_taskmodel(tmp_path)
        problems = str(caught.value)
        for reason in (
            "makes its vectors by pooling_mode_mean_sqrt_len_tokens, Dense; supported are mean, cls, max, weightedmean",
            "do_lower_case in sentence_bert_config.json is not supported",
            "leaves its prompt out of the pooling (include_prompt: false)",
            "compares its vectors by euclidean; supported is cosine, or dot after Normalize",
        ):
            assert reason in problems

    @pytest.mark.parametrize("name", ["query", "document"])
    def test_a_prompt_that_is_left_out_of_the_pooling_is_refused_even_where_it_is_no_default(self, name, tmp_path):
        foreign(
            tmp_path,
            pooling={"pooling_mode_mean_tokens": True, "include_prompt": False},
            more={"prompts": {name: "find: "}, "default_prompt_name": None},
        )
        with pytest.raises(UserError, match=r"leaves its prompt out of the pooling \(include_prompt: false\)"):
            load_taskmodel(tmp_path)

    @pytest.mark.parametrize(
        ("parts", "named"),
        [
            (("Transformer", "Dense"), "Dense"),  # ColBERT, as PyLate saves it
            (("MLMTransformer", "SpladePooling"), "MLMTransformer, SpladePooling"),
        ],
    )
    def test_late_interaction_and_sparse_vectors_are_refused_by_name(self, parts, named, tmp_path):
        foreign(tmp_path, parts=parts)
        (tmp_path / "1_Pooling" / "config.json").unlink()
        with pytest.raises(UserError, match=f"makes its vectors by {named}; supported are mean"):
            load_model(tmp_path, tiny_spec("retrieval"))

    def test_the_network_of_a_sparse_embedder_alone_is_one_of_mean_vectors(self, tmp_path):
        model = tiny_taskmodel("bert", tiny_spec("masked-lm"))
        model.model.save_pretrained(tmp_path)
        model.tokenizer.save_pretrained(tmp_path)
        found = load_model(tmp_path, tiny_spec("retrieval"))
        assert found.task.pooling == "mean"
        assert vectors(found).shape == (3, 32), "of states, not of the vocabulary"

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"pooling": {"pooling_mode": ["mean", "cls"]}}, "makes its vectors by mean, cls; supported are"),
            ({"more": {"default_prompt_name": "query"}}, "its default prompt 'query' is none of its prompts"),
            ({"limits": {"max_seq_length": 0}}, "max_seq_length is 0"),
            ({"limits": {"max_seq_length": "long"}}, "modules.json and the pooling it names cannot be read"),
            ({"more": ["no object"]}, "cannot be read"),
        ],
    )
    def test_a_folder_that_is_wrong(self, fields, reason, tmp_path):
        with pytest.raises(UserError, match=reason):
            load_taskmodel(foreign(tmp_path, **fields))
        (tmp_path / "1_Pooling" / "config.json").unlink()
        with pytest.raises(UserError, match=r"modules.json and the pooling it names cannot be read"):
            load_taskmodel(tmp_path)

    def test_a_name_on_the_hub_is_read_likewise(self, tmp_path, monkeypatch):
        folder = foreign(tmp_path, pooling={"pooling_mode_cls_token": True})
        network = load_taskmodel(folder)
        network.tokenizer.save_pretrained(folder)  # where newer versions keep the most tokens
        (folder / "sentence_bert_config.json").unlink(missing_ok=True)
        settings = folder / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 17}))
        asked = []

        def download(name, *, allow_patterns):
            asked.append(name)
            place = tmp_path / "cache"
            for file in filter(Path.is_file, folder.rglob("*")):
                inside = file.relative_to(folder)
                if inside.parts[0] != "cache" and any(inside.match(pattern) for pattern in allow_patterns):
                    (place / inside).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, place / inside)
            return str(place)

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        from teachers.sentence_folder import small_files

        said = said_by(small_files("acme/embedder"), network.model.config)
        assert (said["pooling"], said["max_length"]) == ("first", 17)
        assert asked == ["acme/embedder"]


class TestWriting:
    def test_the_files_say_how_a_vector_is_made(self, tmp_path):
        spec = tiny_spec("embedding").model_copy(update={"pooling": "first", "normalize": False})
        save_taskmodel(tiny_taskmodel("bert", spec), tmp_path)
        modules = json.loads((tmp_path / "modules.json").read_text())
        assert [(module["type"].rpartition(".")[2], module["path"]) for module in modules] == [
            ("Transformer", ""),
            ("Pooling", "1_Pooling"),
        ]
        assert json.loads((tmp_path / "1_Pooling" / "config.json").read_text()) == {
            "word_embedding_dimension": 32,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": False,
        }
        assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 32

    def test_prompts_are_kept_through_saving(self, tmp_path):
        told = {"prompts": {"query": "find: ", "document": "text: "}, "default_prompt_name": "document"}
        model = Artifact.from_model(load_taskmodel(foreign(tmp_path / "theirs", more=told)))
        model.save(tmp_path / "ours")
        written = json.loads((tmp_path / "ours" / "config_sentence_transformers.json").read_text())
        assert written == {"model_type": "SentenceTransformer", **told, "similarity_fn_name": "cosine"}
        assert load_model(tmp_path / "ours").task.prompt == "text: "

    def test_a_changed_prompt_is_damage(self, tmp_path):
        Artifact.from_model(tiny_taskmodel("bert", tiny_spec("embedding"))).save(tmp_path / "model")
        file = tmp_path / "model" / "config_sentence_transformers.json"
        file.write_text(file.read_text().replace('"query": ""', '"query": "find: "'))
        with pytest.raises(UserError, match=r"config_sentence_transformers.json: is not the file that lineage.json"):
            load_model(tmp_path / "model")

    def test_a_cross_encoder_says_its_length_and_that_scores_stay_as_they_are(self, tmp_path):
        save_taskmodel(tiny_taskmodel("bert", tiny_spec("regression", pair=True)), tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 32

    @pytest.mark.parametrize("version", [3, 5, 6])
    def test_a_cross_encoder_of_the_library_reads_pairs_as_long_as_there(self, version, tmp_path):
        model = tiny_taskmodel("bert", tiny_spec("regression"))
        model.tokenizer.model_max_length = 24
        model.model.save_pretrained(tmp_path)
        model.tokenizer.save_pretrained(tmp_path)
        sigmoid = "torch.nn.modules.activation.Sigmoid"
        file, said = {
            3: ("config.json", {"sbert_ce_default_activation_function": sigmoid}),
            5: ("config.json", {"sentence_transformers": {"activation_fn": sigmoid, "version": "5.1.0"}}),
            6: ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "activation_fn": sigmoid}),
        }[version]
        values = json.loads((tmp_path / file).read_text()) if version < 6 else {}
        (tmp_path / file).write_text(json.dumps(values | said))
        if version == 6:
            one = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}
            (tmp_path / "modules.json").write_text(json.dumps([one]))
        found = load_model(tmp_path).task
        assert (found.kind, found.pair, found.max_length) == ("regression", True, 24)


class TestTheLibraryItself:
    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip("sentence_transformers")

    @pytest.mark.parametrize("pooling", ["mean", "first", "max", "weighted_mean", "last"])
    @pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "xlnet"))
    def test_it_gives_our_vectors(self, family, pooling, library, tmp_path):
        spec = tiny_spec("embedding").model_copy(update={"pooling": pooling, "normalize": pooling != "max"})
        model = tiny_taskmodel(family, spec)
        save_taskmodel(model, tmp_path)
        found = library.SentenceTransformer(str(tmp_path), device="cpu")
        assert np.allclose(found.encode(TEXTS), vectors(model), atol=1e-5)
        assert found.similarity_fn_name == "cosine"

    def test_it_uses_our_prompt(self, library, tmp_path):
        model = tiny_taskmodel("bert", tiny_spec("embedding").model_copy(update={"prompt": "a good "}))
        save_taskmodel(model, tmp_path)
        found = library.SentenceTransformer(str(tmp_path), device="cpu")
        assert found.default_prompt_name == "text"
        assert np.allclose(found.encode(TEXTS), vectors(model), atol=1e-5)

    @pytest.mark.parametrize("default", [None, "query"])
    def test_it_reads_queries_and_documents_as_we_do(self, default, library, tmp_path):
        told = {"prompts": {"query": "a good ", "passage": "the very "}, "default_prompt_name": default}
        model = load_model(foreign(tmp_path / "theirs", more=told), tiny_spec("retrieval"))
        save_taskmodel(model, tmp_path / "ours")
        found = library.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
        for name, encode in (("query", found.encode_query), ("document", found.encode_document)):
            rows = predict(model, [{"text": text, "prompt_name": name} for text in TEXTS]).logits
            assert np.allclose(encode(TEXTS), np.concatenate(rows), atol=1e-5)

    def test_we_give_the_vectors_of_its_own_folder(self, library, tmp_path):
        """The library saves the folder anew, in the form of its own version."""
        foreign(tmp_path / "old", pooling={"word_embedding_dimension": 32, "pooling_mode_weightedmean_tokens": True})
        theirs = library.SentenceTransformer(str(tmp_path / "old"), device="cpu", prompts={"query": "good "})
        theirs.default_prompt_name = "query"
        theirs.save(str(tmp_path / "new"))
        model = load_taskmodel(tmp_path / "new")
        assert (model.task.pooling, model.task.prompt, model.task.max_length) == ("weighted_mean", "good ", 24)
        assert np.allclose(theirs.encode(TEXTS), vectors(model), atol=1e-5)

    @pytest.mark.parametrize(("kind", "family"), [("regression", "bert"), ("classification", "xlnet")])
    def test_a_cross_encoder_gives_our_scores(self, kind, family, library, tmp_path):
        model = tiny_taskmodel(family, tiny_spec(kind, pair=True))
        save_taskmodel(model, tmp_path)
        found = library.CrossEncoder(str(tmp_path), device="cpu")
        pairs = [("good film", "bad film"), ("the day " * 40, "a song")]
        own = predict(model, [{"text_a": a, "text_b": b} for a, b in pairs]).logits
        expected = torch.tensor(np.stack(own)).squeeze(-1).numpy()
        assert np.allclose(found.predict(pairs), expected, atol=1e-5)
