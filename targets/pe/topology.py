"""The topology file of the ``pe`` target: elements, their engines, their links.

::

    pe:
      count: 4
      attrs:
        clock_freq_ghz: 1.0
        scheduler_queue_depth: 16
        pe_cost_model: {fixed_per_cmd_cycles: 40, byte_cycles_recip: 0.0625}
        dma: {bytes_per_cycle: 64, setup_cycles: 32}
        gemm: {macs_per_cycle: 1024, setup_cycles: 8}
        math: {elements_per_cycle: 64, setup_cycles: 4}
        tcm: {bytes_per_cycle: 256, setup_cycles: 1, capacity_bytes: 1048576}
        tiling: {m: 64, k: 64, n: 64, staging_buffers: 2}
      overrides:
        1: {pe_cost_model: {fixed_per_cmd_cycles: 20}}
    links: {bytes_per_cycle: 32, setup_cycles: 64}

Every key is optional.  Times are cycles of the element's clock; nanoseconds
appear once, at display.  A misspelt key is refused with the nearest legal one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.cost_model import PeCostModel, exact_number
from raptor_cp.targets.pe.knobs import reject_unknown_keys

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rate:
    """An engine: ``setup_cycles`` for each stage, then ``per_cycle`` units a cycle."""

    per_cycle: Fraction
    setup_cycles: Fraction

    def cycles(self, units: int) -> Fraction:
        """Cycles of a stage of ``units`` bytes, MACs or elements."""
        return self.setup_cycles + units / self.per_cycle


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the scheduler cuts a composite; extents in elements.

    ``staging_buffers`` tiles of an operand may be staged or consumed at a time
    (two: one is filled while the other is used).
    """

    m: int = 64
    k: int = 64
    n: int = 64
    staging_buffers: int = 2


@dataclass(frozen=True, slots=True)
class PeAttributes:
    """One processing element.

    Args:
        clock_freq_ghz: cycles per nanosecond.
        scheduler_queue_depth: commands that the scheduler holds until they retire.
        cost_model: dispatch knobs.
        dma: bytes between HBM and local memory.
        gemm: multiply-accumulates.
        math: elements.
        tcm: bytes between local memory and the engines.
        capacity_bytes: size of the local memory.
        tiling: tile extents of composites.
    """

    clock_freq_ghz: Fraction = Fraction(1)
    scheduler_queue_depth: int = 16
    cost_model: PeCostModel = field(default_factory=PeCostModel)
    dma: Rate = Rate(Fraction(64), Fraction(32))
    gemm: Rate = Rate(Fraction(1024), Fraction(8))
    math: Rate = Rate(Fraction(64), Fraction(4))
    tcm: Rate = Rate(Fraction(256), Fraction(1))
    capacity_bytes: int = 1 << 20
    tiling: Tiling = field(default_factory=Tiling)

    def cycles_to_ns(self, cycles: Fraction) -> Fraction:
        """Exact nanoseconds of ``cycles``; round only to show them."""
        return cycles / self.clock_freq_ghz


@dataclass(frozen=True, slots=True)
class PeTopology:
    """Elements and the links between any two of them (cycles of element 0)."""

    elements: tuple[PeAttributes, ...] = (PeAttributes(),)
    link: Rate = Rate(Fraction(32), Fraction(64))

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, object] | None, *, where: str = "topology"
    ) -> PeTopology:
        """The topology of parsed YAML.

        Raises:
            MalformedInput: unknown key, wrong type, value out of range.
        """
        root = _mapping(data, where, ["pe", "links"])
        pe = _mapping(root.get("pe"), f"{where}.pe", ["count", "attrs", "overrides"])
        count = _count(pe.get("count", 1), f"{where}.pe.count")
        base = attributes_from_mapping(pe.get("attrs"), where=f"{where}.pe.attrs")
        elements = [base] * count
        overrides = pe.get("overrides")
        if overrides is not None and not isinstance(overrides, Mapping):
            raise MalformedInput(
                "not a mapping", where=f"{where}.pe.overrides", value=overrides
            )
        for index, attrs in (overrides or {}).items():
            place = f"{where}.pe.overrides.{index}"
            if type(index) is not int or not 0 <= index < count:
                raise MalformedInput(
                    "no such element",
                    where=place,
                    value=index,
                    expected=f"0 to {count - 1}",
                )
            elements[index] = attributes_from_mapping(attrs, base, where=place)
        links = _mapping(
            root.get("links"), f"{where}.links", ["bytes_per_cycle", "setup_cycles"]
        )
        link = _rate(links, "bytes_per_cycle", cls().link, f"{where}.links")
        return cls(tuple(elements), link)

    @classmethod
    def load(cls, path: Path) -> PeTopology:
        """The topology in a YAML file.

        Raises:
            MalformedInput: unreadable file, bad YAML, or a bad value in it.
        """
        import yaml

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
            raise MalformedInput(
                f"cannot read the topology: {problem}", where=str(path)
            ) from problem
        if data is not None and not isinstance(data, Mapping):
            raise MalformedInput("not a mapping", where=str(path), value=data)
        return cls.from_mapping(data, where=str(path))


_ENGINE_RATES = {
    "dma": "bytes_per_cycle",
    "gemm": "macs_per_cycle",
    "math": "elements_per_cycle",
    "tcm": "bytes_per_cycle",
}


def attributes_from_mapping(
    data: object, base: PeAttributes | None = None, *, where: str = "attrs"
) -> PeAttributes:
    """An ``attrs:`` block over ``base`` (the defaults when there is none).

    An override gives only what differs, inside ``pe_cost_model:`` too.

    Raises:
        MalformedInput: unknown key, wrong type, value out of range.
    """
    base = base or PeAttributes()
    legal = [
        "clock_freq_ghz",
        "scheduler_queue_depth",
        "pe_cost_model",
        "tiling",
        *_ENGINE_RATES,
    ]
    given = _mapping(data, where, legal)
    clock = exact_number(
        given.get("clock_freq_ghz", base.clock_freq_ghz), "clock_freq_ghz", where=where
    )
    if clock == 0:
        raise MalformedInput("must be positive", where=f"{where}.clock_freq_ghz")
    rates: dict[str, Rate] = {}
    capacity = base.capacity_bytes
    for engine, unit in _ENGINE_RATES.items():
        place = f"{where}.{engine}"
        extra = ["capacity_bytes"] if engine == "tcm" else []
        block = _mapping(given.get(engine), place, [unit, "setup_cycles", *extra])
        rates[engine] = _rate(block, unit, getattr(base, engine), place)
        if "capacity_bytes" in block:
            capacity = _count(block["capacity_bytes"], f"{place}.capacity_bytes")
    tiles = [f.name for f in fields(Tiling)]
    tiling = _mapping(given.get("tiling"), f"{where}.tiling", tiles)
    return PeAttributes(
        clock_freq_ghz=clock,
        scheduler_queue_depth=_count(
            given.get("scheduler_queue_depth", base.scheduler_queue_depth),
            f"{where}.scheduler_queue_depth",
        ),
        cost_model=_cost_model(
            given.get("pe_cost_model"), base.cost_model, f"{where}.pe_cost_model"
        ),
        capacity_bytes=capacity,
        tiling=replace(
            base.tiling,
            **{k: _count(v, f"{where}.tiling.{k}") for k, v in tiling.items()},
        ),
        **rates,
    )


def _cost_model(data: object, base: PeCostModel, where: str) -> PeCostModel:
    names = [f.name for f in fields(PeCostModel)]
    given = _mapping(data, where, names)
    merged: dict[str, object] = {name: getattr(base, name) for name in names}
    return PeCostModel.from_mapping({**merged, **given}, where=where)


def _mapping(data: object, where: str, legal: list[str]) -> Mapping[str, object]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise MalformedInput("not a mapping", where=where, value=data)
    reject_unknown_keys(data, legal, where=where)
    return cast("Mapping[str, object]", data)


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MalformedInput(
            "not a positive whole number",
            where=where,
            value=value,
            expected="1 or more",
        )
    return value


def _rate(given: Mapping[str, object], unit: str, base: Rate, where: str) -> Rate:
    per_cycle = exact_number(given.get(unit, base.per_cycle), unit, where=where)
    if per_cycle == 0:
        raise MalformedInput("must be positive", where=f"{where}.{unit}", value=0)
    setup = exact_number(
        given.get("setup_cycles", base.setup_cycles), "setup_cycles", where=where
    )
    return Rate(per_cycle, setup)
