"""Makes elements of HTML and SVG: every text in them is made safe on its way in."""

from xml.etree.ElementTree import Element, SubElement

from kair_tui.render.text import clean


def element(tag: str, *inside: "Element | str | None", **attributes: str) -> Element:
    """An element with texts and elements in it. A trailing `_` of an attribute's name falls away: `class_`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): clean(value) for name, value in attributes.items()})
    for one in inside:
        if isinstance(one, str):
            _add_text(made, clean(one))
        elif one is not None:
            made.append(one)
    return made


def svg(width: int, height: int, label: str) -> Element:
    """An empty picture that grows with its place; `label` says what it shows to who does not see it."""
    # HTML needs no namespace, and ElementTree would give every tag a prefix with one.
    return Element("svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": clean(label)})


def draw(into: Element, tag: str, text: str | None = None, **attributes: str | float) -> Element:
    """A shape in a picture; of numbers one decimal is kept."""
    named = {name.rstrip("_").replace("_", "-"): _number(value) for name, value in attributes.items()}
    made = SubElement(into, tag, named)
    made.text = None if text is None else clean(text)
    return made


def path(points: "list[tuple[float, float]]", *, closed: bool = False) -> str:
    """The outline through some points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if closed else "")


def _number(value: str | float) -> str:
    return clean(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _add_text(to: Element, text: str) -> None:
    if len(to):
        to[-1].tail = (to[-1].tail or "") + text
    else:
        to.text = (to.text or "") + text
