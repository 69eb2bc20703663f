"""JUnit XML, as build servers read it: one suite, one case for each scenario.

Elements and attributes are those that the common schema (``testsuites``,
``testsuite``, ``testcase`` with ``failure``, ``error`` or ``skipped``) knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What XML 1.0 has no way to say, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JunitCase:
    """One test case; at most one of the three texts.

    Attributes:
        name: of the case.
        classname: group of the case.
        seconds: wall time.
        failure: what differs, a line for each; the first is the message.
        error: why it could not be run.
        skipped: why it was not run.
    """

    name: str
    classname: str
    seconds: float
    failure: str = ""
    error: str = ""
    skipped: str = ""


def junit_xml(suite: str, cases: Sequence[JunitCase]) -> bytes:
    """The document, UTF-8 with its declaration.

    >>> print(junit_xml("s", [JunitCase("a<b", "c", 0.5)]).decode())
    <?xml version='1.0' encoding='utf-8'?>
    <testsuites tests="1" failures="0" errors="0" time="0.500">
      <testsuite name="s" tests="1" failures="0" errors="0" skipped="0" time="0.500">
        <testcase name="a&lt;b" classname="c" time="0.500" />
      </testsuite>
    </testsuites>
    """
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(bool(c.failure) for c in cases)),
        "errors": str(sum(bool(c.error) for c in cases)),
    }
    seconds = f"{sum(c.seconds for c in cases):.3f}"
    root = ElementTree.Element("testsuites", {**counts, "time": seconds})
    skipped = str(sum(bool(c.skipped) for c in cases))
    group = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": _legal(suite), **counts, "skipped": skipped, "time": seconds},
    )
    for case in cases:
        element = ElementTree.SubElement(
            group,
            "testcase",
            {
                "name": _legal(case.name),
                "classname": _legal(case.classname),
                "time": f"{case.seconds:.3f}",
            },
        )
        for tag, text in (
            ("skipped", case.skipped),
            ("error", case.error),
            ("failure", case.failure),
        ):
            if text:
                _add(element, tag, _legal(text))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return bytes(text)


def _add(case: ElementTree.Element, tag: str, text: str) -> None:
    given = {"message": text.splitlines()[0]}
    if tag != "skipped":
        given["type"] = tag
    detail = ElementTree.SubElement(case, tag, given)
    if "\n" in text:
        detail.text = text


def _legal(text: str) -> str:
    return _ILLEGAL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)
