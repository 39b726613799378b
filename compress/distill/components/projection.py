"""Linear maps from the student's width to the teacher's, trained beside the student and thrown away afterwards."""

from __future__ import annotations

from torch import Tensor, nn


class Projection(nn.Module):
    """Maps hidden states ``[..., student width]`` to ``[..., teacher width]``.

    Args:
        student: Width of the student.
        teacher: Width of the teacher.
        bias: Whether a bias is added.
        always: Whether equal widths are mapped too; otherwise they pass unchanged.
    """

    def __init__(self, student: int, teacher: int, *, bias: bool = False, always: bool = False) -> None:
        super().__init__()
        needed = always or student != teacher
        self.linear = nn.Linear(student, teacher, bias=bias) if needed else nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        """Return the states ``[…, student]`` in the teacher's width, ``[…, teacher]``."""
        mapped: Tensor = self.linear(states)
        return mapped
