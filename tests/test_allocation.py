"""Local memory: lives that meet never share bytes; exhaustion is an answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.targets.pim.allocation import (
    ADDRESS_LIMIT,
    Allocation,
    Buffer,
    MemoryExhausted,
    allocate,
)


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    """Some buffers with short lives."""
    result = []
    for index in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 6))
        size = draw(st.integers(1, 100))
        result.append(Buffer(f"b{index}", size, first, last))
    return result


@given(buffers())
def test_no_two_live_buffers_share_bytes(group: list[Buffer]) -> None:
    found = allocate(group)
    assert isinstance(found, Allocation)
    for i, one in enumerate(group):
        start = found.addresses[i]
        assert start >= 0
        assert start + one.size <= found.used
        for j, other in enumerate(group[:i]):
            if one.first <= other.last and other.first <= one.last:
                begin = found.addresses[j]
                apart = start + one.size <= begin or begin + other.size <= start
                assert apart, (one, other)


@given(buffers(), st.integers(1, 400))
def test_exhaustion_is_reported_exactly_when_used_exceeds_capacity(
    group: list[Buffer], capacity: int
) -> None:
    free, found = allocate(group), allocate(group, capacity)
    assert isinstance(free, Allocation)
    assert isinstance(found, MemoryExhausted) == (free.used > capacity)
    if isinstance(found, MemoryExhausted):
        assert found.configured
        assert found.limit == capacity < found.needed


def test_bytes_are_used_again_after_a_life() -> None:
    found = allocate([Buffer(str(i), 64, i, i) for i in range(10)])
    assert isinstance(found, Allocation)
    assert found.used == 64


def test_addresses_stay_in_signed_32_bits() -> None:
    found = allocate([Buffer("a", 2**30, 0, 1), Buffer("b", 2**30 + 1, 0, 1)], 2**40)
    assert isinstance(found, MemoryExhausted)
    assert found.limit == ADDRESS_LIMIT
    assert not found.configured
    assert "32-bit" in found.reason
