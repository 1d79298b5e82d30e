"""What an answer says in one of several kinds: a class each, with its figures, its description and its sentence.

A family of kinds derives from `Kind`, and each kind from its family. The engine makes them, kept answers hold them as
a tagged union, `kair schema` prints what they mean, and `kair_tui/render/sentences.py` fills their templates.
"""

import re
from typing import Any, ClassVar

import msgspec

Number = int | float
"""A count, or a mean of counts."""


def _name(of_class: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", of_class).lower()


class Kind(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_name):
    """A kind, or a family of them; the fields of a family are no figures."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type["Kind"]]]
    """All of the family, by their names."""
    template: ClassVar[str]
    _family: ClassVar[type["Kind"]]

    def __init_subclass__(cls) -> None:
        """Register the kind under its name, unless it is only what several kinds have in common."""
        cls.kind = _name(cls.__name__)
        if Kind in cls.__bases__:
            cls.kinds, cls._family = {}, cls
        elif not cls.__name__.startswith("_"):
            cls.kinds[cls.kind] = cls

    @classmethod
    def description(cls) -> str:
        """Return what the kind says, and which figures it has."""
        text = " ".join((cls.__doc__ or "").split())
        figures = [
            f"{'' if field.required else 'perhaps '}{field.name.rstrip('_')}"
            for field in msgspec.structs.fields(cls)
            if field.name not in cls._family.__struct_fields__
        ]
        return f"{text} Figures: {', '.join(figures)}." if figures and "Figures:" not in text else text

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures that are known, by their names; `ranks_` is the number of ranks where that is one."""
        names = (name for name in self.__struct_fields__ if name not in self._family.__struct_fields__)
        return {name.rstrip("_"): value for name in names if (value := getattr(self, name)) is not None}

    def wording(self) -> str:
        """Return the template that fits the figures."""
        return self.template
