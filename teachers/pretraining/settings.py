"""The ``pretrain`` block of a recipe, as typed values; it is read without torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from teachers.anatomy.families import FAMILIES
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.text.packing import Format
from teachers.pretraining.text.tokenizer_training import Kind
from teachers.training.config import Training

Positive = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class TokenizerBlock(_Block):
    """The tokenizer.

    Attributes:
        from_: A model folder or hub name whose tokenizer is taken; written ``from``. Otherwise one is learned from the
            text.
        kind: ``wordpiece`` (BERT), ``bytes`` (RoBERTa), ``unigram`` (ALBERT), ``xlnet`` (unigrams too, with the
            classifier token last), ``gpt2`` (bytes too, with an end of text as the only special token), ``bpe`` (bytes
            too, for an encoder with a decoder) or ``t5`` (the same with the 100 sentinels of ``span_corruption``).
        size: Pieces.
        lowercase: Whether everything is written small; those of bytes never do.
    """

    from_: str | None = Field(default=None, alias="from", min_length=1)
    kind: Kind = "wordpiece"
    size: int = Field(default=8000, ge=100)
    lowercase: bool = True


class NetworkBlock(_Block):
    """The network.

    Attributes:
        from_: A model folder or hub name whose network and tokenizer are trained further; written ``from``. Heads that
            were trained here go on where a task of the same name asks for them.
        family: Model type.
        layers: Transformer layers; those of the encoder, if there is a decoder beside it.
        decoder_layers: Layers of the decoder (BART, Marian, T5); as many as of the encoder by default.
        hidden_size: Channels.
        heads: Attention heads.
        intermediate_size: Neurons of the feed-forward network; four times the channels by default.
        embedding_size: Channels of factorised embeddings (ALBERT, ELECTRA, MobileBERT, DeBERTa).
        max_positions: Most tokens of an input.
        options: Further values of the family's config in transformers, such as ``{use_task_id: true}`` of ERNIE.
    """

    from_: str | None = Field(default=None, alias="from", min_length=1)
    family: str = "bert"
    layers: Positive = 4
    decoder_layers: Positive | None = None
    hidden_size: Positive = 256
    heads: Positive = 4
    intermediate_size: Positive | None = None
    embedding_size: Positive | None = None
    max_positions: Positive = 512
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @field_validator("family")
    @classmethod
    def _trainable(cls, family: str) -> str:
        allowed = [
            name
            for name in FAMILIES
            if ((known := FAMILIES.get(name)).predicts_words or known.causal or known.two_streams or known.decoder)
            and known.layers
        ]
        if family not in allowed:
            raise ValueError(f"got {family!r}; those that are pretrained here: {', '.join(allowed)}")
        return family


class PretextTask(_Block):
    """One task of a stage: where sequences come from, and what is asked of them.

    Attributes:
        sequences: How sentences make a sequence; see ``teachers.pretraining.text.packing``.
        pair: What two segments are to each other: ``next_sentence`` (BERT), ``sentence_order`` (ALBERT),
            ``sentence_structure`` (StructBERT) or ``sentence_distance`` (ERNIE 2.0).
        reorder: Most parts of a shuffled paragraph whose order is asked for (ERNIE 2.0); 3 gives 9 classes.
        given: Folder, file or hub name of pairs with ``text_a``, ``text_b`` and ``label``, such as discourse relations
            or queries with results (ERNIE 2.0). A split named validation is watched.
        dialogues: Folder, file or hub name of dialogues with ``turns``; whether they are real is asked for (ERNIE 1.0).
            A split named validation is watched.
        translations: Folder, file or hub name of pairs with ``source`` and ``target``, the same in two languages. They
            are read one after the other, so that hidden words of one are found in the other (XLM's translation language
            modelling). A split named validation is watched.
        language: Of translations, whether ``both`` are read or the ``source`` or ``target`` sentences alone.
        language_embeddings: Whether the token type of a ``target`` sentence is 1 when it is read alone too, so that
            types are XLM's language embeddings. Standard tokenizers give such a sentence 0.
        restart: Whether the positions of the second of two translations begin anew, as in XLM.
        objectives: What is asked of the tokens.
        draws: How many different forms chance gives a sequence: 1 is static masking, none a new one in every epoch.
        task_type: Number of the task for networks that take one (ERNIE 2.0).
        weight: What the loss of the sequences' class is multiplied by.
        most: Most sequences.
    """

    sequences: Format | None = None
    pair: Literal["next_sentence", "sentence_order", "sentence_structure", "sentence_distance"] | None = None
    reorder: int = Field(default=0, ge=0, le=5)
    given: str | None = None
    dialogues: str | None = None
    translations: str | None = None
    language: Literal["both", "source", "target"] = "both"
    language_embeddings: bool = False
    restart: bool = True
    objectives: Objectives = Field(default_factory=Objectives)
    draws: Positive | None = None
    task_type: int = Field(default=0, ge=0)
    weight: float = Field(default=1.0, gt=0)
    most: Positive | None = None

    @model_validator(mode="after")
    def _one_source(self) -> PretextTask:
        named = [name for name in ("pair", "reorder", "given", "dialogues", "translations") if getattr(self, name)]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)}: a sequence has one class; write a task for each")
        if named in ([], ["translations"]) and not self.objectives.given:
            raise ValueError("asks for nothing; give objectives such as {mlm: {}}, or pair, reorder, given, dialogues")
        others = sorted({"language", "language_embeddings", "restart"} & self.model_fields_set)
        if others and not self.translations:
            raise ValueError(f"{others[0]}: is of translations")
        if self.objectives.next_word is not None and named:
            raise ValueError(f"next_word is for decoders, which have no token that knows a pair; leave {named[0]} out")
        if self.objectives.plm is not None and named:
            raise ValueError(
                f"plm has no loss of whole sequences; leave {named[0]} out. sequences: segment_pair gives two segments"
            )
        directed = self.objectives.prefix_lm
        if directed is not None and named not in ([], ["translations"], ["pair"] if directed.sees_all else []):
            raise ValueError(
                f"prefix_lm: not every token sees both segments; leave {named[0]} out. A pair can be asked for in a "
                "task whose other directions are 0: prefix_lm: {bidirectional: 1, sequence_to_sequence: 0, "
                "left_to_right: 0, right_to_left: 0}"
            )
        if self.memory and self.format != "blocks":
            raise ValueError("memory: is of sequences: blocks, of which each goes on where the one before it ends")
        writing = [name for name, own in self.objectives.given.items() if own.writes]
        if writing and named:
            raise ValueError(f"{writing[0]} has no token that knows a pair; leave {named[0]} out")
        if self.format not in ("segment_pair", "sentence_pair") and (self.pair or self.reorder):
            raise ValueError(
                f"sequences: {self.format} does not keep sentences apart; leave it out for pairs and paragraphs, or "
                "take sentence_pair"
            )
        if self.sequences is not None and self.own_source:
            raise ValueError("sequences: is for text; given pairs, dialogues and translations are sequences already")
        return self

    @property
    def own_source(self) -> str | None:
        """Pairs, dialogues or translations, if the task has a source of its own."""
        return self.given or self.dialogues or self.translations

    @property
    def restarts(self) -> bool:
        """Whether positions begin anew within a sequence."""
        return bool(self.translations) and self.language == "both" and self.restart

    @property
    def format(self) -> Format:
        """How sentences make a sequence: segments where there are two, blocks for a decoder, else full sequences."""
        if self.sequences is None and (self.objectives.next_word is not None or self.memory):
            return "blocks"
        two = self.pair or self.reorder or self.objectives.prefix_lm is not None
        return self.sequences or ("segment_pair" if two else "full_sentences")

    @property
    def memory(self) -> int:
        """Tokens before a sequence whose hidden states are its memory."""
        return max((own.remembers for own in self.objectives.given.values()), default=0)

    @property
    def unasked_pair(self) -> str | None:
        """What two segments are to each other where nobody asks for it, as of XLNet and UniLM; None of one segment."""
        if self.format != "segment_pair" or self.own_source:
            return None
        kinds = {"next_sentence": self.objectives.plm, "adjacent": self.objectives.prefix_lm}
        return next((name for name, own in kinds.items() if own is not None), None)


class Stage(_Block):
    """Tasks that are trained together.

    Attributes:
        tasks: By name; every batch is of one task, and the batches of all are shuffled.
        length: Most tokens of a sequence.
        training: How weights are updated. ``keep`` is ``last`` by default.
    """

    tasks: dict[str, PretextTask] = Field(min_length=1)
    length: int = Field(default=128, ge=8)
    training: Training = Field(default_factory=lambda: Training(keep="last"))

    @property
    def has_generator(self) -> bool:
        """Whether a network beside the one that is pretrained fills hidden tokens, as ELECTRA's."""
        return any(task.objectives.rtd is not None for task in self.tasks.values())

    @model_validator(mode="after")
    def _short_memory(self) -> Stage:
        most = max(task.memory for task in self.tasks.values())
        if most > self.length:
            raise ValueError(f"memory: {most} tokens are more than a sequence has ({self.length}); take no more")
        return self

    @field_validator("training", mode="before")
    @classmethod
    def _keeps_the_last(cls, values: Any) -> Any:
        return {"keep": "last", "group_by_length": False, **values} if isinstance(values, dict) else values


class Pretraining(_Block):
    """How a teacher learns from text alone, before any task.

    Attributes:
        text: Folders, files or hub names of unlabelled text; of a folder its splits ``train`` and ``validation``.
        tokenizer: Its tokenizer.
        network: Its network.
        segmenter: ``jieba`` finds Chinese words, which are then hidden whole.
        stages: One after another; the tasks of a stage are trained together, heads of the same name go on.
    """

    text: Names
    tokenizer: TokenizerBlock = Field(default_factory=TokenizerBlock)
    network: NetworkBlock = Field(default_factory=NetworkBlock)
    segmenter: Literal["jieba"] | None = None
    stages: tuple[Stage, ...]

    @field_validator("text", mode="before", json_schema_input_type=str | Names)
    @classmethod
    def _several(cls, text: Any) -> Any:
        return [text] if isinstance(text, str) else text

    @model_validator(mode="after")
    def _one_tokenizer(self) -> Pretraining:
        if self.network.from_ is not None and self.tokenizer.model_fields_set:
            raise ValueError(
                f"tokenizer: the network of {self.network.from_} is trained further with its own; leave tokenizer out"
            )
        return self

    @model_validator(mode="after")
    def _one_head_a_name(self) -> Pretraining:
        tasks = [(name, task) for stage in self.stages for name, task in stage.tasks.items()]
        taken = {*Objectives.model_fields, *(task.pair for _, task in tasks), "reorder"}
        for name, task in tasks:
            if (task.given or task.dialogues) and name in taken:
                raise ValueError(f"tasks: {name}: given pairs and dialogues have a head of this name, as another does")
        if len(counts := sorted({task.reorder for _, task in tasks} - {0})) > 1:
            raise ValueError(f"reorder: {' and '.join(map(str, counts))} have one head; give all tasks the same number")
        return self

    @field_validator("stages")
    @classmethod
    def _some(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        if not stages:
            raise ValueError("needs a stage: {length: 128, tasks: {text: {objectives: mlm}}}")
        return stages
