"""raptor-cp: schedules neural networks on processing-in-memory chips.

The public Python API::

    import raptor_cp as rc

    result = rc.schedule("scenario.yaml")
    result.verdict, result.interval_ns, result.certificate.gap
    result.to_dict()

Every operation of the command line is one call: :func:`load`, :func:`schedule`,
:func:`check`, :func:`compare`, :func:`regress`, :func:`verify`, :func:`diagnose`
(the command ``periodic``), :func:`dispatch`, :func:`read_network`,
:func:`sweep`, :func:`report`.
"""

from raptor_cp.api import (
    check,
    compare,
    diagnose,
    dispatch,
    load,
    read_network,
    regress,
    report,
    schedule,
    sweep,
    verify,
)
from raptor_cp.errors import (
    Infeasible,
    InternalError,
    MalformedInput,
    RaptorError,
    Unresolved,
)
from raptor_cp.verdict import Unavailable, Verdict

__all__ = [
    "Infeasible",
    "InternalError",
    "MalformedInput",
    "RaptorError",
    "Unavailable",
    "Unresolved",
    "Verdict",
    "check",
    "compare",
    "diagnose",
    "dispatch",
    "load",
    "read_network",
    "regress",
    "report",
    "schedule",
    "sweep",
    "verify",
]
