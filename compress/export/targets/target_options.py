"""What a recipe or a command line asks of an export."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TargetBlock(BaseModel):
    """What may be asked of every target; those with options of their own extend it.

    Attributes:
        int8: Whether weights become int8, as a step of ``quantize`` recorded it, or else with ranges of activations
            from training examples.
        agreement: Least share of predictions that an int8 export must share with its model; forms are tried until one
            has it. By default until one has 0.99, and 0.97 must be reached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    int8: bool = False
    agreement: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _of_any_target(cls, values: Any) -> Any:
        """Take a plain ``TargetBlock`` for a target that has further options."""
        return values.model_dump(exclude_unset=True) if type(values) is TargetBlock else values

    def own(self) -> dict[str, Any]:
        """Return what was asked beside the options of every target, as plain JSON."""
        given = self.model_dump(mode="json", exclude_unset=True)
        return {key: value for key, value in given.items() if key not in TargetBlock.model_fields}


class GeneratorBlock(TargetBlock):
    """What may be asked of an export that writes text.

    Attributes:
        beams: For seq2seq: beginnings that its beam search keeps; 1 takes the likeliest token each time. By default as
            many as the task says. A student of ``distill.sequence`` often needs fewer than its teacher.
        length_penalty: For seq2seq with beams: the power of its length that the score of a text is divided by; by
            default the task's.
    """

    beams: int | None = Field(default=None, ge=1, le=64)
    length_penalty: float | None = Field(default=None, ge=0)


class OpenVinoBlock(TargetBlock):
    """What may be asked of OpenVINO.

    Attributes:
        precision: What is not 8-bit is computed in this: ``auto`` is bfloat16 where the processor has it and the gate
            passes, float32 otherwise.
    """

    precision: Literal["auto", "bf16", "f32"] = "auto"
