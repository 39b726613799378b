"""The base of every export target: what it is called and needs, what it writes, and what runs that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compress.export.targets.library import Library
from eval.errors import UserError, did_you_mean
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class Written:
    """What a target says of the network that it wrote.

    Attributes:
        exporter: What made the graph.
        float_bytes: What the network would be in float32.
        opset: Version of the ONNX operators, if it went through ONNX.
        quantized: For int8, what became 8-bit.
        one_token: Products that are computed for the one token that the head reads, by their names in the graph.
        every_token: Why others of the last layer are computed for every token.
        precision: What it computes in, if the target knows several: ``f32`` or ``bf16``.
    """

    exporter: str
    float_bytes: int
    opset: int | None = None
    quantized: Mapping[str, Any] | None = None
    one_token: tuple[str, ...] = ()
    every_token: str = "the target computes the model as it is"
    precision: str | None = None

    @property
    def is_float32(self) -> bool:
        """Whether all that is not 8-bit is computed in float32."""
        return self.precision in (None, "f32")


class Target:
    """One thing that a model can be exported to.

    A target writes a network that a library runs (``library``, ``write``), or rearranges the export for another target
    (``basis``, ``arrange``). Its module is imported to run an export too: torch, onnx and pydantic are loaded inside
    its methods.

    Attributes:
        name: What recipes and ``compress export --to`` call it.
        summary: One line on what it is for.
        needs: Packages without which it is neither written nor compared with its model.
        extra: The extra of this distribution that brings the package of that name, if there is one.
        adds: What that extra adds, for ``compress doctor``.
        library: What runs its exports; None if nothing on this machine does.
        basis: Target whose export it is made of, with the options of this one; that export is compared with the model
            before it is rearranged.
        activations: Ranges of activations that its 8-bit networks can have; without any it has no 8 bits.
        writes: Whether its exports write text in answer to a text, token by token.
        tuned: Whether ``compress export --tune`` measures its variants where no target is named.
        speed_is_input: Whether the speed of early exits can be set when an export is run.
        hub_library: What the Hugging Face hub calls the library that loads its exports.
        try_it: The command that tries what was written, with ``{out}`` for its folder and ``{text}`` for an input.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    adds: ClassVar[str] = ""
    library: ClassVar[Library | None] = None
    basis: ClassVar[str] = ""
    activations: ClassVar[tuple[str, ...]] = ("token", "tensor", "static")
    writes: ClassVar[bool] = False
    tuned: ClassVar[bool] = False
    speed_is_input: ClassVar[bool] = False
    hub_library: ClassVar[str] = "onnx"
    try_it: ClassVar[str] = "compress predict {out} {text}"

    def trial(self, kind: str) -> str:
        """Return the command that tries an export of a kind of task: ``try_it``, unless the kind takes other words."""
        return "compress verify {out}" if kind_of(kind).masks else self.try_it

    def options(self) -> type[TargetBlock]:
        """Return what a recipe and the command line may ask of it: ``TargetBlock`` or an extension of it."""
        from compress.export.targets.target_options import TargetBlock

        return TargetBlock

    def read_options(self, values: Mapping[str, Any]) -> TargetBlock:
        """Return what is asked of it beside the options of every target.

        Args:
            values: Plain values by name, or their text.

        Raises:
            UserError: If it has no such option, or an option has no such value.
        """
        from eval.files.typed_json import typed

        model = self.options()
        allowed = [name for name in model.model_fields if name not in ("int8", "agreement")]
        hint = {name: did_you_mean(name, allowed) or "; it has none" for name in values if name not in allowed}
        if hint:
            raise UserError(*(f"{self.name}: unknown option {name!r}{ending}" for name, ending in hint.items()))
        cure = f"see what {type(self).__name__}.options says"
        found: TargetBlock = typed(dict(values), model, self.name, cure)
        return found

    def missing(self) -> list[str]:
        """Return a sentence for each package that it needs and that is not installed."""
        absent = [package for package in self.needs if find_spec(package) is None]
        how = {self.extra: f"'nlp-compress[{self.extra}]'"}
        return [f"{package} is not installed; run: pip install {how.get(package, package)}" for package in absent]

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Return why a model cannot be exported with these options; nothing is computed.

        Args:
            model: What would be exported.
            options: What is asked.
        """
        del model, options
        return []

    def unanswered(self, model: TaskModel) -> list[str]:
        """Return why exports of this target cannot answer a model's kind of task; nothing if they can."""
        from eval.kinds.kind_registry import kind_of

        kind = model.task.kind
        if self.writes or not kind_of(kind).writes:
            return []
        return [f"{model.name}: {kind} answers with a text, which {self.name} does not write; export it to generator"]

    def asked_of(self, model: TaskModel, options: TargetBlock) -> TaskModel:
        """Return the model as its exports shall answer with these options; they are compared with that.

        Args:
            model: What is exported.
            options: What is asked.
        """
        del options
        return model

    def precisions(self, options: TargetBlock) -> Mapping[str, TargetBlock]:
        """Return the options under which an export is tried, the fastest first, by what notes add to its name.

        Args:
            options: What is asked.
        """
        return {"": options}

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write the files of ``library`` into a folder.

        Args:
            model: What is exported; it is left as it was.
            beside: A folder that gets its name once the export has been compared with the model.
            scheme: How it becomes 8-bit; None keeps float32.
            options: What is asked.

        Raises:
            UserError: If it cannot be expressed, or a package is not installed.
            CompressError: If it cannot be converted.
        """
        raise NotImplementedError

    def arrange(self, model: TaskModel, beside: Path, manifest: Mapping[str, Any], options: TargetBlock) -> Any:
        """Make of a whole export of ``basis`` what this target is.

        Args:
            model: What was exported.
            beside: The folder; it is compared with the model already.
            manifest: Content of its ``export.json``.
            options: What is asked.

        Returns:
            What the manifest says otherwise.
        """
        raise NotImplementedError

    def client(self, manifest: Mapping[str, Any]) -> Library | None:
        """Return what ``predict.py`` of a rearranged export runs it with; None leaves that of ``basis``.

        Args:
            manifest: Content of its ``export.json``.
        """
        del manifest
        return None

    def page(self, model: TaskModel, manifest: Mapping[str, Any]) -> str | None:
        """Return the README of an export; None takes the usual one.

        Args:
            model: What was exported.
            manifest: Content of its ``export.json``.
        """
        del model, manifest
        return None

    def notes(self, manifest: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what is still to be done before an export can be used, a sentence each."""
        del manifest
        return ()
