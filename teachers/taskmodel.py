"""A network with its tokenizer and its task: loading, building, predicting, saving."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from eval.cost.size import MACS_LENGTH, device_of, model_size
from eval.encoding import Array, Inputs, TextEncoder
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.choice_rows import read_rows
from teachers.anatomy.encoder import base_encoder, family_of, max_tokens
from teachers.anatomy.families import FAMILIES, register_family
from teachers.anatomy.forms.linear_form import LinearAuto, recorded_state
from teachers.anatomy.padding import silence
from teachers.anatomy.pooling import pooled, set_pooling
from teachers.chosen_on import chosen_on
from teachers.fitting_tokenizer import check_tokenizer, make_ready
from teachers.folder_task import in_own_order, keeping_thresholds, own_task, read_task
from teachers.generation.search_settings import tell_unfollowed, write_search
from teachers.generation.torch_decoding import TorchDecoding
from teachers.limits import size_problems
from teachers.loaded_part import loaded_part
from teachers.seeding import seeded
from teachers.sentence_folder import as_said, save_for_other_libraries, set_cross_encoder
from teachers.task_settings import check_kind, encoder_settings
from teachers.weight_check import aligned, complain, not_finite, read_stock

if TYPE_CHECKING:
    from eval.cost.size import Size


@dataclass(frozen=True)
class TaskModel:
    """A standard network with its head, the tokenizer that feeds it, and the task it answers: a ``Predictor``.

    Attributes:
        model: A ``…ForSequenceClassification``, ``…ForTokenClassification``, ``…ForQuestionAnswering``,
            ``…ForMaskedLM``, ``…ForCausalLM``, ``…ForConditionalGeneration`` or ``…ForMultipleChoice`` module, or the
            bare encoder for embedding.
        tokenizer: A fast tokenizer of transformers.
        task: What is asked.
        name: What reports call it.
        folder: Where it was loaded from or saved to, if it was.
    """

    model: Any
    tokenizer: Any
    task: TaskSpec
    name: str = field(default="model", kw_only=True)
    folder: Path | None = field(default=None, kw_only=True, compare=False)

    @cached_property
    def encoder(self) -> TextEncoder:
        """How examples become inputs; made once from the tokenizer and the task."""
        settings = encoder_settings(self.model, self.tokenizer, self.task)
        try:
            return TextEncoder(self.tokenizer.backend_tokenizer, settings)
        except ValueError as error:
            raise UserError(f"{self.name}: {error}") from error

    @contextlib.contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Have the network on the GPU for a while, where there is one; then it is back where it was."""
        before = device_of(self.model)
        if torch.cuda.is_available():
            self.model.to("cuda")
        try:
            yield
        finally:
            self.model.to(before)

    @property
    def is_on_gpu(self) -> bool:
        """Whether the network is on a GPU now."""
        return device_of(self.model).type == "cuda"

    def forward(self, inputs: Inputs) -> Array:
        """Return float32 logits ``[rows, C]``, ``[rows, length, C]`` for tagging, qa and words, or vectors."""
        return self.forward_counted(inputs)[0]

    def forward_counted(self, inputs: Inputs) -> tuple[Array, Array | None]:
        """Return the logits, and for a network that answers early how many layers each row ran through, ``[rows]``.

        Such a network has a method ``answer`` beside its plain forward pass.
        """
        device = device_of(self.model)
        tensors = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}
        with evaluating(self.model):
            outputs = getattr(self.model, "answer", self.model)(**tensors)
            logits = logits_of(outputs, self.model.config, tensors["attention_mask"]).float().cpu().numpy()
        layers = outputs.get("layers")
        return logits, None if layers is None else layers.cpu().numpy()

    def write(self, inputs: Inputs) -> list[list[int]]:
        """Return the tokens that the network writes for each row, without the one that ends it; of ``seq2seq``."""
        return [own[0] for own in self.write_several(inputs, 1)]

    def write_several(self, inputs: Inputs, most: int = 0) -> list[list[list[int]]]:
        """Return for each row the tokens of the ``most`` best texts that were found; 0 returns all of them."""
        device, kind = device_of(self.model), self.encoder.kind
        sources = {name: torch.from_numpy(inputs[name]).to(device) for name in self.encoder.settings.inputs}
        with evaluating(self.model):
            found = kind.written_several(self.encoder.settings, TorchDecoding(self.model, sources))
        return [own[: most or len(own)] for own in found]

    def size(self) -> Size:
        """Parameters, bytes and multiply-accumulates of the network."""
        return model_size(self.model, min(MACS_LENGTH, max_tokens(self.model.config)))

    @property
    def chosen_on(self) -> dict[str, str]:
        """What was chosen, or learned -> digest of the examples it was chosen on (see ``eval.proof.role``)."""
        return chosen_on(self.folder)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes and bytes of all weights; do not read it while the weights still change."""
        return weights_digest(self.model)


def logits_of(outputs: Any, config: Any = None, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the logits of a transformers output; start and end logits of qa are stacked to ``[B, L, 2]``.

    Args:
        outputs: What the network returned.
        config: The network's; without a head it says how the states become vectors ``[B, d]``, the network's answer.
        mask: 1 for real tokens ``[B, L]``, likewise.
    """
    if "start_logits" in outputs:
        return torch.stack([outputs["start_logits"], outputs["end_logits"]], dim=-1)
    if "logits" not in outputs and mask is not None:
        return pooled(outputs["last_hidden_state"], mask, config)
    logits: torch.Tensor = outputs["logits"]
    return logits


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off for a while; what was switched off before stays so."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def weights_digest(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over names, shapes, types and bytes of all parameters and persistent buffers."""
    digest = hashlib.sha256()
    state = recorded_state(model) if isinstance(model, torch.nn.Module) else model
    for name, tensor in sorted(state.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def set_task(config: Any, task: TaskSpec) -> None:
    """Write labels and the kind of problem into a transformers config, where standard code looks for them."""
    kind = kind_of(task.kind)
    if kind.labelled:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {label: i for i, label in enumerate(task.labels)}
    elif kind.number:
        config.id2label, config.label2id = {0: "score"}, {"score": 0}
    elif kind.vectors:
        set_pooling(config, task)
    elif task.outputs:
        config.num_labels = task.outputs
    config.problem_type = kind.problem_type  # another task's makes a config that cannot be read again
    set_cross_encoder(config, task)


def auto_class(task: TaskSpec) -> Any:
    """Return what makes or loads the network with its head, as a class of transformers would."""
    return LinearAuto(getattr(transformers, kind_of(task.kind).auto_class))


def build_taskmodel(config: Any, tokenizer: Any, task: TaskSpec, seed: int = 0, name: str = "model") -> TaskModel:
    """Build a network with random weights; equal seeds give equal weights and the global random state stays.

    Raises:
        UserError: If the family is not supported or the tokenizer does not fit the vocabulary.
    """
    check_kind(config, task)
    set_task(config, task)
    make_ready(tokenizer, config)
    if large := size_problems(config, name):
        raise UserError(*large)
    with seeded(seed), quiet():
        model = auto_class(task).from_config(config)
    check_tokenizer(tokenizer, config, where=name)
    read_rows(model)
    silence(model, tokenizer)
    return TaskModel(model.eval(), tokenizer, task, name=name)


def with_head(model: TaskModel, task: TaskSpec, seed: int = 0) -> TaskModel:
    """Return a copy of a network's encoder with a new head for another kind of task; the network stays as it is.

    A pooler that both have is part of the encoder, as in a standard load.

    Args:
        model: Any network.
        task: What the copy answers.
        seed: Seeds the head.

    Raises:
        UserError: If the family has no head for this kind of task.
    """
    config = copy.deepcopy(model.model.config)
    try:
        built = build_taskmodel(config, model.tokenizer, task, seed=seed, name=model.name)
    except ValueError as error:  # transformers has no such class
        raise UserError(f"{model.name}: {family_of(config).model_type} has no head for {task.kind}") from error
    base_encoder(built.model).load_state_dict(base_encoder(model.model).state_dict(), strict=False)
    return built


def load_taskmodel(
    source: str | Path,
    task: TaskSpec | None = None,
    seed: int = 0,
    config: Any = None,
    read: Callable[[Any, Any], Any] | None = None,
    *,
    accept_incomplete: bool = False,
) -> TaskModel:
    """Load a standard model from a folder or by its hub name; a head that is missing starts with random weights.

    Args:
        source: A folder with ``config.json``, weights and tokenizer files, or a hub name.
        task: What is asked; None takes ``task.json`` of the folder, or the labels in its config.
        seed: Seeds a new head.
        config: The network's, if ``config.json`` is not one that transformers reads.
        read: Makes the network in the place of transformers, from the Auto class of its head and its config.
        accept_incomplete: Whether weights that are missing, unexpected, of another shape or not finite are only logged.

    Raises:
        UserError: If the model is missing, damaged or incomplete, of an unsupported family, would run code of its own,
            or does not answer the task.
    """
    source, where = str(source), Path(source)
    if where.exists() and not (where / "config.json").is_file():
        raise UserError(
            f"{source}: no config.json here; a model folder holds config.json, model.safetensors, tokenizer"
        )
    config = config or loaded_part(source, "configuration", lambda: _config(source))
    family_of(config)
    if large := size_problems(config, f"{source}: config.json"):
        raise UserError(*large)
    said = read_task(where)
    task = task or said or own_task(where, config)
    check_kind(config, task)
    task = as_said(source, config, task)
    tokenizer = loaded_part(source, "tokenizer", lambda: load_tokenizer(source, config=config))
    make_ready(tokenizer, config)
    task = keeping_thresholds(in_own_order(source, config, task), said)
    check_tokenizer(tokenizer, config, where=source)
    set_task(config, task)
    loader = auto_class(task)
    with seeded(seed), quiet():
        if read is None:
            model = loaded_part(
                source, "weights", lambda: read_stock(source, loader, config, accept_incomplete=accept_incomplete)
            )
        else:
            model = loaded_part(source, "weights", lambda: read(loader, config))
            complain(source, not_finite(model), accept_incomplete)
    for part in model.modules():  # bitsandbytes would repack its weights at the first use, with other roundings
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False
    read_rows(model)
    silence(model, tokenizer)
    aligned(model)
    tell_unfollowed(model, task, source)
    return TaskModel(model.eval(), tokenizer, task, name=where.name or source, folder=where if where.is_dir() else None)


def _config(source: str) -> Any:
    try:
        register_family(transformers.PreTrainedConfig.get_config_dict(source)[0])
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{source}: its config.json asks for code that comes with the model (auto_map), and code of a model folder "
            f"is never run; supported are the families {', '.join(FAMILIES)}"
        ) from error
    names = config.architectures or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{source}: config.json: architectures must be a list of names; copy the folder anew")
    return config


def load_tokenizer(source: str, **settings: Any) -> Any:
    """Load the fast tokenizer of a folder or hub name; no code of the folder is run.

    Args:
        source: The folder or hub name.
        settings: Passed on to transformers.

    Raises:
        UserError: If there is none, or only a slow one.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **settings)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{source}: the tokenizer has no tokenizer.json; convert it to a fast tokenizer first")
    made_of_nothing = set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens)
    if made_of_nothing and not (Path(source) / "tokenizer.json").is_file():
        raise UserError(
            f"{source}: has no tokenizer, or an empty one, so every text would be unknown; copy tokenizer.json "
            "(or vocab.txt) and tokenizer_config.json of the model into it"
        )
    return tokenizer


def save_taskmodel(
    model: TaskModel,
    folder: str | Path,
    write: Callable[[Any, Path, bool], None] | None = None,
    *,
    weights: bool = True,
) -> None:
    """Write a plain Hugging Face folder and ``task.json`` into ``folder``, which must exist.

    Args:
        model: What is saved.
        folder: Where to.
        write: Writes the network in the place of transformers; it is told whether its weights are wanted.
        weights: Whether they are; without them everything else is the same.
    """
    folder = Path(folder)
    write_search(model.model, model.task)
    with quiet():
        (write or _write_stock)(model.model, folder, weights)
        model.tokenizer.save_pretrained(folder)
    save_for_other_libraries(model.model, folder, model.task, standard=write is None)
    (folder / "task.json").write_text(model.task.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _write_stock(network: Any, folder: Path, weights: bool) -> None:
    if weights:
        network.save_pretrained(folder)
        return
    config = copy.deepcopy(network.config)
    config.architectures = [type(network).__name__]
    config.save_pretrained(folder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from reporting each new head and each file; its errors still come through."""
    logger, bars = logging.getLogger("transformers"), transformers.utils.logging.is_progress_bar_enabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
