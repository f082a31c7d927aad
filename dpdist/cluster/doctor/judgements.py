"""What is wrong with what processes say of themselves: values to findings, nothing asked and nothing changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from dpdist.cluster.doctor.facts import OTHERS, Listening, Member, Process, SchedulerFacts
from dpdist.cluster.doctor.findings import Finding, Level, fault, of_sentence, ok, once, warning
from dpdist.core.versions import VERSIONED
from dpdist.execution.dask import WORKER_ENVIRONMENT, Limits
from dpdist.execution.versions import refusal

#: Seconds by which clocks may differ; results do not depend on clocks, the order of lines in logs does.
CLOCKS = 5.0
#: Tasks a thread for which the scheduler's answer is hidden, and above which many wait on workers that may end.
SATURATION = (2.0, 8.0)
_START = "set {} in the environment in which workers start"
_MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_LOG = "look at that worker's log"
_BITS = (*VERSIONED, "python")

Versions = Mapping[str, str | None]


def judge_arrival(workers: Sequence[Member], expected: int | None, seconds: float) -> Finding:
    """Did the workers come that were asked for, in the time given?"""
    threads = sum(worker.threads for worker in workers)
    hosts = _count(len({worker.host for worker in workers}), "host")
    found = f"{_count(len(workers), 'worker')} with {_count(threads, 'thread')} in all on {hosts} after {seconds:.1f} s"
    if not workers:
        return fault("workers", f"none came within {seconds:.0f} s", "look at the workers' logs or queue; raise --wait")
    if expected is not None and len(workers) < expected:
        return warning("workers", f"{found}; {expected} were expected", "look for those that are missing; raise --wait")
    return ok("workers", found)


def judge_tasks(told: Mapping[str, Process | Exception]) -> list[Finding]:
    """Did every worker carry out its task?"""
    faults = [
        fault("tasks", f"{address} did not carry out a task ({type(error).__name__}: {error})", _LOG)
        for address, error in told.items()
        if isinstance(error, Exception)
    ]
    return once(faults, ok("tasks", f"carried out by {_count(len(told), 'worker')}") if told else None)


def judge_worker_versions(theirs: Sequence[tuple[str, Versions]], ours: Versions) -> list[Finding]:
    """Do workers run what the coordinator runs?

    Parameters
    ----------
    theirs : a worker's host, and its package -> version
    ours : package -> version
    """
    found = [
        each
        for host, versions in theirs
        for each in (
            _versions(Level.FAULT, versions, ours, host, _BITS),
            _versions(Level.WARNING, versions, ours, host, OTHERS),
        )
        if each is not None
    ]
    told = ", ".join(f"{name} {ours[name]}" for name in (*_BITS, *OTHERS))
    return once(found, ok("versions", told))


def _versions(level: Level, theirs: Versions, ours: Versions, host: str, names: Sequence[str]) -> Finding | None:
    there = {name: theirs.get(name) or "" for name in names}
    error = refusal(there, {name: ours[name] or "" for name in names}, host)
    return None if error is None else of_sentence(level, "versions", str(error))


def judge_scheduler_versions(theirs: Versions, ours: Versions) -> list[Finding]:
    """Does the scheduler run the coordinator's Dask and Python? It computes nothing, so that no more matters."""
    names = ("python", "dask", "distributed")
    other = [name for name in names if theirs.get(name) != ours.get(name)]
    told = " and ".join(f"{name} {theirs.get(name) or 'not installed'} instead of {ours[name]}" for name in other)
    return (
        [warning("versions", f"the scheduler has {told}", "install the coordinator's version there")] if other else []
    )


def judge_processors(workers: Sequence[Process]) -> list[Finding]:
    """Are all workers' processors of one kind? Results have the same bits on one kind only."""
    kinds = Counter(worker.processor for worker in workers)
    if len(kinds) > 1:
        told = "; ".join(f"{_count(count, 'worker')} on {kind}" for kind, count in kinds.most_common())
        return [warning("processors", told, "use hosts of one kind if a run is to end at the same bits each time")]
    return [ok("processors", next(iter(kinds)))] if kinds else []


def judge_threads(workers: Sequence[Process]) -> list[Finding]:
    """Has each worker thread one thread of BLAS, of Numba and of Zarr?"""
    found: list[Finding] = []
    for each in workers:
        if each.blas_threads > 1:
            told = f"BLAS takes {each.blas_threads} threads in workers on {each.host}, which changes bits"
            found.append(fault("threads", told, _START.format("OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1")))
        if each.environment.get("NUMBA_NUM_THREADS") != "1":
            told = f"Numba takes {each.environment.get('NUMBA_NUM_THREADS', 'all')} threads in workers on {each.host}"
            found.append(warning("threads", told, _START.format("NUMBA_NUM_THREADS=1")))
        if max(each.zarr_threads) > 1:
            reads, threads = each.zarr_threads
            told = f"Zarr reads {reads} chunks at once with {threads} threads in workers on {each.host}"
            found.append(
                warning("threads", told, _START.format("ZARR_ASYNC__CONCURRENCY=1 and ZARR_THREADING__MAX_WORKERS=1"))
            )
    return once(found, ok("threads", "BLAS, Numba and Zarr take one in each worker") if workers else None)


def judge_malloc(workers: Sequence[Process]) -> list[Finding]:
    """Do workers keep large buffers, instead of having their pages faulted in again by each read?"""
    found = []
    for each in workers:
        low = [name for name in _MALLOC if _number(each.environment.get(name)) < int(WORKER_ENVIRONMENT[name])]
        if low:
            told = " and ".join(f"{name} is {each.environment.get(name, 'not set')}" for name in low)
            advice = _START.format(" and ".join(f"{name}={WORKER_ENVIRONMENT[name]}" for name in low))
            found.append(warning("malloc", f"{told} in workers on {each.host}, which slows reads", advice))
    return once(found, ok("malloc", "large buffers are kept") if workers else None)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def judge_memory(workers: Sequence[Member], told: Mapping[str, Process]) -> list[Finding]:
    """Do limits keep the workers of a host within its memory, and is there room to spill?

    Parameters
    ----------
    told : address -> what the worker says
    """
    return once([*_limits(workers), *_sums(workers, told), *_disks(workers, told)], _memory_in_words(workers, told))


def _limits(workers: Sequence[Member]) -> list[Finding]:
    return [
        warning("memory", f"workers on {each.host} have no memory limit", "start workers with --memory-limit")
        for each in workers
        if not each.memory_limit
    ]


def _sums(workers: Sequence[Member], told: Mapping[str, Process]) -> list[Finding]:
    limits: Counter[str] = Counter()
    memory: dict[str, int] = {}
    for each in workers:
        if each.address in told:
            limits[told[each.address].host] += each.memory_limit
            memory[told[each.address].host] = told[each.address].memory
    return [
        warning(
            "memory",
            f"workers on {host} may take {_size(limit)} together, of {_size(memory[host])}",
            "give each a lower limit, or start fewer",
        )
        for host, limit in limits.items()
        if limit > memory[host]
    ]


def _disks(workers: Sequence[Member], told: Mapping[str, Process]) -> list[Finding]:
    return [
        warning(
            "memory",
            f"{_size(told[each.address].disk_free)} are free in {each.folder} on {told[each.address].host}, "
            f"less than a worker's memory of {_size(each.memory_limit)} that may be spilled there",
            "choose a larger local_directory",
        )
        for each in workers
        if each.address in told and told[each.address].disk_free < each.memory_limit
    ]


def _memory_in_words(workers: Sequence[Member], told: Mapping[str, Process]) -> Finding | None:
    if not workers or not told:
        return None
    limit, disk = min(each.memory_limit for each in workers), min(each.disk_free for each in told.values())
    return ok("memory", f"{_size(limit)} or more a worker, {_size(disk)} or more to spill")


def judge_scheduler(facts: SchedulerFacts, allowed_failures: int | None) -> list[Finding]:
    """Has the scheduler the settings that dpdist ships?

    Parameters
    ----------
    allowed_failures : that a run sets itself, if it does
    """
    found, least = [], Limits.deaths
    low, high = SATURATION
    if not low <= facts.saturation <= high:
        advice = f"set distributed.scheduler.worker-saturation to {low} for the scheduler before it starts"
        found.append(warning("scheduler", f"worker-saturation is {facts.saturation}", advice))
    if allowed_failures is None and facts.allowed_failures < least:
        told = f"a task is given up after {facts.allowed_failures} workers died under it, whoever killed them"
        found.append(warning("scheduler", told, f"set allowed_failures = {least} in the cluster's configuration"))
    kept = f"worker-saturation {facts.saturation}, allowed-failures {allowed_failures or facts.allowed_failures}"
    return once(found, ok("scheduler", kept))


def judge_pages(scheduler: Listening, workers: Mapping[str, Listening]) -> list[Finding]:
    """Are dashboards and metrics, which no certificate protects, on loopback only?

    Parameters
    ----------
    workers : address -> what the worker says
    """
    open_pages = [("the scheduler", scheduler), *((f"workers on {host_of(a)}", each) for a, each in workers.items())]
    found = [
        warning(
            "dashboard",
            f"pages of {name} are open on {each.pages or 'every address'}, where no certificate protects them",
            "start it with --dashboard-address 127.0.0.1:0",
        )
        for name, each in open_pages
        if not is_loopback(each.pages)
    ]
    return once(found, ok("dashboard", "on loopback only"))


def host_of(address: str) -> str:
    """The host in an address such as ``tls://host:8786``."""
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def judge_clocks(differences: Mapping[str, float]) -> list[Finding]:
    """Do clocks agree?

    Parameters
    ----------
    differences : process -> seconds by which its clock differs at least
    """
    found = [
        warning(
            "clocks",
            f"the clock of {name} differs by {seconds:.0f} s or more",
            "have NTP set it; results do not depend on it, but times in logs do",
        )
        for name, seconds in differences.items()
        if seconds > CLOCKS
    ]
    return once(found, ok("clocks", f"within {CLOCKS:.0f} s of this one") if differences else None)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
