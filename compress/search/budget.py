"""The budget of a search: what a model may cost and lose, how long the search may take, and where it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from compress.reading.base_block import Block
from compress.reading.block_reader import BlockReader
from compress.reading.wording import shown
from compress.reading.yaml_places import Location, decode, read_yaml
from compress.recipe.blocks import TaskBlock, TeacherBlock
from compress.recipe.checks import evaluate_problems, finetune_problems
from compress.recipe.schema import NAME
from compress.search.limit import Limit, LimitLine
from eval.errors import UserError

Aim = Literal["bytes", "macs", "parameters", "p50_ms", "score"]


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class SpaceBlock(Block):
    """Where the search looks in the place of the default space.

    Attributes:
        template: Recipes in which any value may be ``{search: [0.25, 0.5]}`` or ``{search: {low: 0.1, high: 0.6}}``; of
            each the blocks student, augment, training, steps and export count. ``null`` in a list leaves the value out.
        start: Recipes that are tried first; each is a point of the space.
    """

    template: Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    start: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()


class Budget(Block):
    """What is searched for.

    Attributes:
        name: Names the search.
        seed: The source of all chance.
        task: As in a recipe.
        teacher: As in a recipe: what is compressed, and held against every candidate.
        limits: Lines such as ``bytes <= 10 MB``; see ``compress.search.limit``.
        optimise: What shall be small, or ``score``, which shall be high; several give a Pareto front.
        winners: How many models are looked at on the test split at the end, with Holm's correction if several.
        candidates: Most candidates that are trained; without it as many as the hours allow. With it a search that is
            killed and resumed ends with the same front, whatever the clock says, if the hours suffice.
        shares: Parts of the optimizer steps after which candidates are compared and most of them dropped.
        stress: Whether winners and teacher answer perturbed texts too, for report and certificate (``eval.stress``).
        attributions: Whether reports say if winners and teacher base their predictions on the same tokens.
        space: Where to look; by default ``compress.search.default_space``.
    """

    name: str = "search"
    seed: int = Field(default=13, ge=0, lt=2**31)
    task: TaskBlock
    teacher: TeacherBlock
    limits: tuple[LimitLine, ...] = ()
    optimise: Annotated[tuple[Aim, ...], BeforeValidator(_several), Field(min_length=1)] = ("bytes",)
    winners: int = Field(default=1, ge=1, le=10)
    candidates: int | None = Field(default=None, ge=1)
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(default=(1 / 9, 1 / 3, 1.0), min_length=1)
    stress: bool = False
    attributions: bool = False
    space: SpaceBlock | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Budget:
        named = [limit.what for limit in self.limits]
        if twice := sorted({what for what in named if named.count(what) > 1}):
            raise ValueError(f"limits: {', '.join(twice)}: is limited twice; say it once")
        if "hours" not in named and self.candidates is None:
            raise ValueError("nothing ends the search; add 'hours <= 4' to limits, or candidates: 20")
        if "loss" not in named and "score" not in self.optimise:
            raise ValueError(
                "the smallest model answers nothing; add 'loss <= 1 point @ 95%' to limits, or optimise score"
            )
        if list(self.shares) != sorted(set(self.shares)) or self.shares[-1] != 1:
            raise ValueError(f"shares: got {list(self.shares)}, must rise to 1, such as [0.1, 0.3, 1]")
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name: {shown(self.name)} must be letters, digits, spaces or . + - _")
        return self

    def limit(self, what: str) -> Limit | None:
        """Return the limit of bytes, loss, hours …, if there is one."""
        return next((limit for limit in self.limits if limit.what == what), None)

    @property
    def margin(self) -> float:
        """Loss against the teacher that is allowed, in units of the metric; one point where nothing is said."""
        limit = self.limit("loss")
        return 0.01 if limit is None else limit.most

    @property
    def times(self) -> bool:
        """Whether milliseconds count."""
        return "p50_ms" in self.optimise or self.limit("p50_ms") is not None

    def shared(self) -> dict[str, Any]:
        """Return the blocks of a recipe that all candidates have alike, as plain values."""
        given, timing = self.plain(), self.limit("p50_ms")
        evaluate: dict[str, Any] = {"against": "teacher", "margin": self.margin}
        evaluate |= {"stress": self.stress, "attributions": self.attributions}
        evaluate["latency"] = {"batch": [1 if timing is None else timing.batch]} if self.times else None
        return {"seed": self.seed, "task": given["task"], "teacher": given["teacher"], "evaluate": evaluate}

    def plain(self) -> dict[str, Any]:
        """Return the values that were given, as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def read_budget(path: str | Path) -> Budget:
    """Read a budget from a YAML file.

    Raises:
        UserError: With every error of the file at once, each with its line.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: the budget cannot be read ({error.strerror or error})") from error
    document = read_yaml(decode(raw, str(path)), str(path))
    if isinstance(document.data, dict) and document.data.keys() & {"steps", "student"}:
        raise UserError(
            f"{path}: is a recipe, which compress run runs; a budget has limits, and may name a recipe with space: "
            f"{{template: {path.name}}}"
        )
    reader = BlockReader(document)
    budget, errors = reader.attempt(Budget, document.data)
    for one in errors:
        reader.tell(one, lambda field: ("", field))
    if budget is not None:
        for location, sentence in _problems(budget):
            reader.report(location, sentence)
    if reader.problems or budget is None:
        raise UserError(*reader.sorted_problems())
    space = budget.space
    if space is not None:  # files are named from the budget's own folder
        beside = {
            name: tuple(str(path.parent / file) for file in getattr(space, name)) for name in ("template", "start")
        }
        budget = budget.model_copy(update={"space": space.model_copy(update=beside)})
    return budget


def _problems(budget: Budget) -> list[tuple[Location, str]]:
    from compress.recipe.blocks import EvaluateBlock

    return [
        *evaluate_problems(budget.task, EvaluateBlock()),
        *finetune_problems((budget.task,), budget.teacher),
    ]
