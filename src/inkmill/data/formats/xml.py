"""XML files of annotation tools, read element by element, without what makes XML unsafe: a file with a DTD is refused.

Entities are what can fill the memory (the "billion laughs") or lead to other files, and no annotation tool writes any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from inkmill.errors import LabelFileError
from inkmill.files import explain, open_data

_BLOCK = 1 << 16
_DEEPEST = 64


@dataclass(slots=True)
class Element:
    """One element with all below it.

    Attributes:
        tag: its name.
        line: where it begins, from 1.
        attributes: by name.
        text: the characters right in it.
        children: in order.
    """

    tag: str
    line: int
    attributes: dict[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Return the children of a name."""
        return [child for child in self.children if child.tag == tag]

    def number(self, name: str, otherwise: float | None = None) -> float:
        """Return an attribute as a number.

        Raises:
            ValueError: it is none, or missing where there is no other value.
        """
        if name not in self.attributes and otherwise is not None:
            return otherwise
        try:
            return float(self.attributes.get(name, ""))
        except ValueError:
            raise ValueError(f"expected a number as {name} of <{self.tag}>") from None


class _RefusedError(Exception):
    """Carries a reason out of the parser's callbacks."""


def elements(path: Path, tag: str) -> Iterator[Element]:
    """Yield the elements of a name, outermost, in order; memory holds one at a time.

    Raises:
        LabelFileError: no XML, a DTD in it, or nested too deeply.
    """
    ready: list[Element] = []
    parser = _parser(tag, ready)
    try:
        with open_data(path) as stream:
            while block := stream.read(_BLOCK):
                parser.Parse(block, False)
                yield from ready
                ready.clear()
        parser.Parse(b"", True)
        yield from ready
    except _RefusedError as error:
        raise LabelFileError(str(error), path, parser.CurrentLineNumber) from None
    except expat.ExpatError as error:
        raise LabelFileError(f"not valid XML: {expat.ErrorString(error.code)}", path, error.lineno) from None
    except (OSError, ValueError, LookupError) as error:  # an encoding that Python does not know
        reason = explain(error) if isinstance(error, OSError) else str(error)
        raise LabelFileError(f"cannot be read ({reason})", path) from error


def _parser(tag: str, ready: list[Element]) -> expat.XMLParserType:
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.buffer_text = True
    open_ones: list[Element] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(open_ones) > _DEEPEST:
            raise _RefusedError(f"elements are nested more than {_DEEPEST} deep")
        if open_ones or name == tag:
            element = Element(name, parser.CurrentLineNumber, attributes)
            if open_ones:
                open_ones[-1].children.append(element)
            open_ones.append(element)

    def end(name: str) -> None:
        if open_ones and (element := open_ones.pop()) and not open_ones:
            ready.append(element)

    def text(data: str) -> None:
        if open_ones:
            open_ones[-1].text += data

    def doctype(*_: object) -> None:
        raise _RefusedError("the file has a DTD, whose entities are not safe to read: take out <!DOCTYPE ...>")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = doctype
    return parser
