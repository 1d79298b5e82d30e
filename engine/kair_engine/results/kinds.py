"""What an answer says in one of several kinds: a class each, with its figures, its description and its sentence.

A family of kinds derives from `Kind`, and each kind from its family. The fields of a family are those of JSON and of
kept answers, among them the kind's name and its `figures` by name; those of a kind are its figures. The engine makes
them, `kair schema` prints what they mean, and `kair_tui/render/sentences.py` fills their templates.
"""

import re
from dataclasses import field
from typing import Any, ClassVar, Self, dataclass_transform

from kair_engine.frozen import dataclass

Number = int | float
"""A count, or a mean of counts."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Kind:
    """A kind, or a family of them."""

    kind: str
    figures: dict[str, Any]
    kinds: ClassVar[dict[str, type["Kind"]]]
    """All of the family, by their names."""
    template: ClassVar[str]
    _family: ClassVar[type["Kind"]]
    _named: ClassVar[str]
    """The family's field with the name of the kind."""
    figure_names: ClassVar[dict[str, str]]
    """Each figure's name by that of its field; they differ for `ranks_`, the number of ranks where that is one."""

    def __init_subclass__(cls, named: str = "kind", kw_only: bool = False) -> None:
        """Register the kind under its name, unless it is only what several kinds have in common."""
        if Kind in cls.__bases__:
            cls.kinds, cls._family, cls._named, cls.figure_names = {}, cls, named, {}
            dataclass(cls, frozen=True, kw_only=True)
            return
        own = [name for name, of in cls.__annotations__.items() if not str(of).startswith("typing.ClassVar")]
        cls.figure_names = cls.figure_names | {name: name.rstrip("_") for name in own}
        cls.__init__ = _init  # type: ignore[assignment, method-assign] # its fields are figures
        if not cls.__name__.startswith("_"):
            cls.kind = re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower()
            cls.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        """Become of the kind that is named, as what was kept is read. Raises ValueError for none, or a figure less."""
        kind = self.kinds.get(getattr(self, self._named))
        known = () if kind is None else kind.figure_names.items()
        given = {name: self.figures[figure] for name, figure in known if figure in self.figures}
        if kind is None or not given.keys() >= kind.required():
            raise ValueError(f"no {self._family.__name__}: {self}")
        object.__setattr__(self, "__class__", kind)
        vars(self).update(given)

    @classmethod
    def required(cls) -> set[str]:
        """Return the fields of the figures that are always known."""
        return {name for name in cls.figure_names if not hasattr(cls, name)}

    @classmethod
    def description(cls) -> str:
        """Return what the kind says, and which figures it has."""
        text = " ".join((cls.__doc__ or "").split())
        required = cls.required()
        figures = [f"{'' if name in required else 'perhaps '}{figure}" for name, figure in cls.figure_names.items()]
        return f"{text} Figures: {', '.join(figures)}." if figures and "Figures:" not in text else text

    def changed(self, **values: Any) -> Self:  # noqa: ANN401
        """Return the same with other values of the family's fields."""
        made = object.__new__(type(self))
        vars(made).update(vars(self) | values)
        return made

    def wording(self) -> str:
        """Return the template that fits the figures."""
        return self.template


def _init(self: Kind, *figures_in_order: Any, **given: Any) -> None:  # noqa: ANN401
    """Make a kind of its figures, those that are not known left out, and of the family's other fields."""
    given |= dict(zip(self.figure_names, figures_in_order, strict=False))
    known = {figure: given.pop(name, None) for name, figure in self.figure_names.items()}
    figures = {figure: value for figure, value in known.items() if value is not None}
    vars(self).update({self._named: self.kind, "figures": figures})
    self._family.__init__(self, **given)
