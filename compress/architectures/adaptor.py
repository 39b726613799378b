"""A module of your own as a student or a teacher: trained by the toolkit, measured, and exported to ONNX."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import QuestionAnsweringModelOutput, TokenClassifierOutput

from compress.architectures.registration import register
from eval.errors import UserError
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import all_kinds, kind_of
from eval.task import TaskSpec
from teachers.taskmodel import TaskModel, evaluating, set_task

ROWS, TOKENS = 2, 5
"""Shape of the input on which a module is tried out."""


class AdaptedConfig(PreTrainedConfig):  # type: ignore[misc]
    """What the toolkit has to know of an adapted module.

    Args:
        module: Name of its class, for messages.
        kind: Kind of the task.
        vocab_size: One more than the highest token id.
        type_vocab_size: 2 if it takes ``token_type_ids``, else 0.
        pad_token_id: The token that fills short rows.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-adapted"

    def __init__(
        self,
        module: str = "",
        kind: str = "classification",
        vocab_size: int = 0,
        type_vocab_size: int = 0,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.module, self.kind = module, kind
        self.vocab_size, self.type_vocab_size, self.pad_token_id = vocab_size, type_vocab_size, pad_token_id


class Adapted(PreTrainedModel):  # type: ignore[misc]
    """A module with the face of a transformers model."""

    config_class = AdaptedConfig
    base_model_prefix = "module"

    def __init__(self, config: AdaptedConfig, module: nn.Module | None = None) -> None:
        super().__init__(config)
        if module is None:
            where = config.name_or_path or "this folder"
            raise UserError(
                f"{where}: holds only the weights of {config.module}, which your own program builds; build it there "
                f"and call compress.architectures.adaptor.adapt(module, tokenizer, task, weights={where!r})"
            )
        self.module = module
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as they came."""

    def get_input_embeddings(self) -> nn.Module | None:
        """Return the module's first table of embeddings."""
        return next((part for part in self.module.modules() if isinstance(part, nn.Embedding)), None)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> QuestionAnsweringModelOutput | TokenClassifierOutput:
        """Run the module and name its output."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = {"input_ids": input_ids, "attention_mask": mask}
        if self.config.type_vocab_size:
            given["token_type_ids"] = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        logits = self.module(**given)
        if _places(self.config.kind):
            return QuestionAnsweringModelOutput(start_logits=logits[..., 0], end_logits=logits[..., 1])
        return TokenClassifierOutput(logits=logits)


def adapt(
    module: nn.Module, tokenizer: Any, task: TaskSpec, *, name: str = "model", weights: str | Path | None = None
) -> TaskModel:
    """Make a student of any module, for ``distill.logits`` and ``distill.labels``, ``measure`` and ``export_onnx``.

    It may be the teacher, too, of whatever learns from logits.

    ::

        student = adapt(TextCnn(len(teacher.tokenizer)), teacher.tokenizer, task.spec)
        inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher))
        small = run(Recipe(steps=(LogitDistillation(epochs=3),)), student, inputs)
        export_onnx(small, "runs/cnn-onnx", examples=task.validation)

    The module is used as it is, not copied. It has to honour ``attention_mask``: an export is refused if a row alone
    and in a batch gives other logits. What is saved holds its weights and not the code that builds it, so
    ``compress.load`` refuses the folder; build the module again and give the folder as ``weights``. The ONNX export
    needs no code at all.

    Args:
        module: Its ``forward(input_ids, attention_mask)``, optionally with ``token_type_ids``, all int64 ``[B, L]``,
            returns logits: ``[B, C]``, ``[B, 1]`` for regression, ``[B, L, C]`` for tagging, ``[B, L, 2]`` for qa.
        tokenizer: A fast tokenizer of transformers; the teacher's, if signals are per token.
        task: What is asked.
        name: What reports call it.
        weights: A folder that an adapted student of the same class was saved in.

    Raises:
        UserError: If the module takes or returns something else, or the weights are of another module.
    """
    kind = type(module).__qualname__
    takes = inspect.signature(module.forward).parameters
    if not _answers(kind_of(task.kind)):
        known = ", ".join(each.name for each in all_kinds() if _answers(each))
        raise UserError(f"{kind}: adapt takes {known}; not {task.kind}")
    missing = [argument for argument in ("input_ids", "attention_mask") if argument not in takes]
    if missing:
        raise UserError(f"{kind}: its forward has no argument {' and '.join(missing)}; it needs both")
    if tokenizer.pad_token_id is None:
        raise UserError(f"{kind}: the tokenizer has no padding token; set tokenizer.pad_token")
    if weights is not None:
        _load(module, Path(weights), kind)
    config = AdaptedConfig(
        module=f"{type(module).__module__}.{kind}",
        kind=task.kind,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        type_vocab_size=2 if "token_type_ids" in takes else 0,
        pad_token_id=int(tokenizer.pad_token_id),
    )
    set_task(config, task)
    model = TaskModel(Adapted(config, module).eval(), tokenizer, task, name=name)
    _try_out(model, kind)
    return model


def _answers(kind: Kind) -> bool:
    """Return whether an adapted module answers a kind: one input an example, and logits that the task knows."""
    return not (kind.several or kind.masks or kind.causal)


def _places(kind: str) -> bool:
    """Return whether there are two outputs, a start and an end."""
    return len(kind_of(kind).graph_outputs) == 2


def _load(module: nn.Module, folder: Path, kind: str) -> None:
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    if not file.is_file():
        raise UserError(f"{folder}: no model.safetensors here; weights is the folder of a saved student")
    found = {name.removeprefix("module."): tensor for name, tensor in load_file(file).items()}
    try:
        module.load_state_dict(found)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{file}: these weights do not fit {kind} as it was built ({reason})") from error


def _try_out(model: TaskModel, kind: str) -> None:
    """Refuse a module whose logits have another shape than the task asks for."""
    outputs = model.task.outputs
    wanted = (ROWS, TOKENS, outputs) if model.task.per_token else (ROWS, outputs)
    device = next(model.model.parameters()).device
    ids = torch.full((ROWS, TOKENS), model.model.config.vocab_size - 1, device=device)
    try:
        with evaluating(model.model):
            found = model.model(input_ids=ids)
            shape = tuple(found[0].shape) + ((2,) if _places(model.task.kind) else ())
    except UserError:
        raise
    except Exception as error:  # a module of the user's may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise UserError(f"{kind}: fails on {ROWS} rows of {TOKENS} tokens, ids up to {ids.max()} ({reason})") from error
    if shape != wanted:
        raise UserError(
            f"{kind}: gives logits of shape {list(shape)} for {ROWS} rows of {TOKENS} tokens; "
            f"{model.task.kind} needs {list(wanted)}"
        )


register(
    AdaptedConfig,
    dict.fromkeys(
        (AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoModelForQuestionAnswering), Adapted
    ),
    base="module",
    dimensions={"vocab_size": "vocab_size"},
)
