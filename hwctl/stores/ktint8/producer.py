"""The process that made a tree: what is known of it and what that says about its life (section 8).

Owns judging one producer. hwctl's own record tells a process from every later one of the same pid;
upstream's is a bare pid, which may come from any pid namespace and proves nothing by itself. What else must
hold before a tree counts as abandoned is ``staleness``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwctl.fs.liveness import Life, Process, in_initial_pid_namespace, judge, proc_stat, started_ns, unshown

_TICK_NS = 20_000_000
"""A process's start is known to a clock tick; one that seems to start just after the lease was written may
be the one that wrote it."""


@dataclass(frozen=True, slots=True)
class Producer:
    """A recorded producer: its pid, when that was written, and hwctl's identity of it if there is one."""

    pid: int
    written_ns: int
    identity: Process | None = None


def life_of(producer: Producer) -> tuple[Life, str]:
    """Whether the producer lives, with the evidence as a clause.

    UNKNOWN means that /proc cannot tell: the pid belongs, or may belong, to another pid namespace.
    """
    if producer.identity is not None:
        return judge(producer.identity)
    pid = producer.pid
    try:
        found = proc_stat(pid)
    except PermissionError:
        return Life.UNKNOWN, unshown(pid)
    if found is not None and not found.ended:
        if started_ns(found) <= producer.written_ns + _TICK_NS:
            return Life.ALIVE, f"pid {pid} is running and is older than its lease"
        gone = f"pid {pid} was reused (the process of that pid is younger than the lease)"
    elif found is not None:
        gone = f"pid {pid} has ended and is only waited for (state {found.state})"
    else:
        gone = f"pid {pid} is gone"
    if not in_initial_pid_namespace():
        return Life.UNKNOWN, f"{gone} here, but only the initial pid namespace shows every process"
    return Life.DEAD, gone


def describe(producer: Producer) -> dict[str, object]:
    """JSON-ready: pid, whether it lives, and how that is known."""
    life, evidence = life_of(producer)
    return {"pid": producer.pid, "life": life.value, "evidence": evidence}
