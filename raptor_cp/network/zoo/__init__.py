"""Built-in networks as readable builders, one family per module."""

from raptor_cp.network.zoo.registry import ZOO, ZooEntry, build, names

__all__ = ["ZOO", "ZooEntry", "build", "names"]
