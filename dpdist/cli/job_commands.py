"""Commands for submitted runs: submit, status, attach, cancel, resume on a cluster, certificates."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import uuid
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.foreground import CheckpointSeconds, Overwrite, expect_losses, way_on
from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.cluster.attach import follow
from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.kinds import ClusterConfig, parse_cluster, read_cluster
from dpdist.cluster.running import AGAIN, FAILED
from dpdist.cluster.submission import Job, JobState, submitter_for, submitter_of
from dpdist.cluster.submission.process import process_job
from dpdist.cluster.submitted import (
    Address,
    End,
    Request,
    add_request,
    copied_from,
    found_since,
    has_begun,
    latest_request,
    newest_request,
    record,
    recorded,
)
from dpdist.core.errors import CheckpointError, DpdistError, InputError
from dpdist.core.lease import Owner, describe, latest_lease, lives, worked_on
from dpdist.core.places import LocalPlace, Place, absolute, place_of
from dpdist.core.waiting import wait_until
from dpdist.data.files import located
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.config import read_config
from dpdist.runs.limits import Limits
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import check_limits, end_of, open_run, run_to_resume, stored_laps
from dpdist.runs.progress import lap_line, say
from dpdist.runs.specs import SPECS
from dpdist.storage.commits import claim, commits, forget_requests, preparation_told
from dpdist.storage.generations import KEEP

#: Seconds within which a request gets a job; one still without a job was left by a killed command.
_STARTING = 5.0
_COPY = "{run} is a copy of {original} and has no job of its own; use: dpdist {command} {original}"

ClusterFile = Annotated[Path, typer.Option(help="TOML file of the cluster, such as those in cluster_configs/.")]


def submit(
    config: Annotated[Path, typer.Argument(help="TOML file with the settings of the run, including its data.")],
    cluster: ClusterFile,
    out: Annotated[str, typer.Option(help="Folder or s3:// URL to write to.")] = "run.zarr",
    command: Annotated[str, typer.Option(help="Command to run: fit, sva or topics.")] = "fit",
    checkpoint_seconds: CheckpointSeconds = CHECKPOINT_SECONDS,
    keep: Annotated[int, typer.Option(min=1, help="Number of checkpoints to keep.")] = KEEP,
    overwrite: Overwrite = False,
) -> None:
    """Start a run in the background, with its coordinator as a separate job, and print the id of the run."""
    if command not in SPECS:
        raise InputError(f"--command should be fit, sva or topics; got {command}.")
    told = read_config(command, config, {})
    if told.data is None:
        raise InputError(f"a submitted run needs data: set its path in {config}, as in data = 'rows.zarr'.")
    chosen = _required(cluster, out)
    place = claim(absolute(out), overwrite)
    before, lease = _refuse_if_alive(place)
    asked = Request(_new_id(), command, told.tables, checkpoint_seconds=checkpoint_seconds, keep=keep)
    _start(place, replace(asked, after=_last(place), lease=lease), before, chosen)


def resume_on(
    run: str,
    cluster: Path,
    max_laps: int | None,
    max_time: float | None,
    data: str | None,
    holdout: str | None,
    checkpoint_seconds: float | None,
) -> None:
    """Continue a run, submitted or not, in a job on a cluster; None stands for the values of the previous request."""
    place, chosen = place_of(absolute(run)), _required(cluster, run)
    before, lease = _refuse_if_alive(place)
    request = _request_of(place)
    begun, last = has_begun(place, request), _last(place)
    found, limits = run_to_resume(place.label) if begun else None, Limits(max_laps, max_time)
    command = METHODS[found.method].command if found else request.command
    check_limits(command, place.label, max_laps, max_time)
    if found and not limits.given and (ended := end_of(found)) is not None:
        raise InputError(f"{place.label} has ended ({ended}); {way_on(METHODS[found.method])}.")
    if not begun or last <= request.after:  # the run does not store the limits of the previous request yet
        limits = Limits(request.max_laps, request.max_time).but(max_laps, max_time)
    request = replace(
        request,
        fresh=not begun,
        lease=lease,
        after=last if begun else request.after,
        max_laps=limits.max_laps,
        max_time=limits.max_time,
        data=located(data) if data else request.data,
        holdout=located(holdout) if holdout else request.holdout,
        checkpoint_seconds=request.checkpoint_seconds if checkpoint_seconds is None else checkpoint_seconds,
    )
    _start(place, request, before, chosen)


def status(
    run: Annotated[str, typer.Argument(help="A run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show the state of a run: its job, its coordinator, its last checkpoint and its results so far."""
    from dpdist.report.show import told

    place = place_of(absolute(run))
    values = _status(place)
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    lines = {name.replace("_", " "): value for name, value in values.items() if value not in (None, "")}
    width = max(map(len, lines))
    for name, value in lines.items():
        OUTPUT.print(f"{name:<{width}}  {told(value)}", highlight=False, markup=False, soft_wrap=True)


def attach(
    run: Annotated[str, typer.Argument(help="A submitted run.")],
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a run that has not started.")] = 600.0,
) -> None:
    """Watch a run as if it ran here, and exit with its status; Ctrl-C leaves it running."""
    place = place_of(absolute(run))
    number, request = latest_request(place)
    if (original := copied_from(place, request)) is not None and _ending(place) is None:
        raise InputError(_COPY.format(run=run, original=original, command="attach"))
    deadline, seen, shown, newest, ended = time.monotonic() + wait, False, 0, 0, None
    try:
        while (end := _ending(place)) is None:
            if (listening := recorded(place, number, Address)) is not None and listening != ended:
                followed, to_its_end = _watched(request, listening.address)
                seen, ended = followed or seen, listening if to_its_end else None
            elif not seen and time.monotonic() > deadline:
                raise InputError(f"{run} did not start within {wait:.0f} s; see: dpdist status {run}")
            if not seen and (last := _last(place)) != newest:  # if the scheduler cannot be reached: laps of checkpoints
                events, newest = stored_laps(open_run(place.label)), last
                for event in events[shown:]:
                    say(MESSAGES, lap_line(event))
                shown = max(shown, len(events))
            time.sleep(1.0)
        say(OUTPUT, end.sentence)
        raise typer.Exit(end.status)
    except KeyboardInterrupt:
        say(MESSAGES, f"detached; the run continues. Attach again with: dpdist attach {run}")


def cancel(
    run: Annotated[str, typer.Argument(help="A submitted run.")],
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has ended.")] = 60.0,
) -> None:
    """Stop a run after a last checkpoint; dpdist resume continues it."""
    place = place_of(absolute(run))
    number, request = latest_request(place)
    job = _job_of(place, number, request)
    if job is None and (original := copied_from(place, request)) is not None:
        raise InputError(_COPY.format(run=run, original=original, command="cancel"))
    if job is None:
        raise InputError(f"{run} has no job to cancel; see: dpdist status {run}")
    submitter = submitter_of(job)
    if submitter.state(job)[0] is JobState.ENDED:
        say(OUTPUT, f"{run} has already ended.")
        return
    submitter.cancel(job)
    if not wait_until(lambda: submitter.state(job)[0] is JobState.ENDED, time.monotonic() + wait):
        raise InputError(f"{run} was asked to stop but did not within {wait:.0f} s; see: dpdist status {run}")
    say(OUTPUT, f"{run} has stopped; continue with: dpdist resume {run} --cluster FILE")


def certificates(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    hosts: Annotated[str, typer.Option(help="Names and addresses of the hosts, separated by commas.")] = (
        "localhost,127.0.0.1"
    ),
    days: Annotated[int, typer.Option(help="Number of days for which the certificates are valid.")] = 365,
) -> None:
    """Create the certificates with which the processes of a cluster authenticate each other (mutual TLS)."""
    made = make_certificates(folder, tuple(name.strip() for name in hosts.split(",")), days)
    say(OUTPUT, f"certificates written to {made}; name this folder in the [security] table of the cluster file.")


def coordinate(run: Annotated[str, typer.Argument(help="A submitted run.")]) -> None:
    """Run the coordinator of a submitted run; called by its job."""
    from dpdist.cluster.coordinator import coordinate as run_coordinator

    raise typer.Exit(run_coordinator(run, OUTPUT))


def _start(place: Place, request: Request, before: int, cluster: ClusterConfig) -> None:
    """Record a request, unless there is another since number `before`, and start its job."""
    number = add_request(place, replace(request, cluster=cluster.model_dump(mode="json"), place=place.identity), before)
    command = [sys.executable, "-m", "dpdist", "coordinate", place.label]
    name = Path(place.label.rstrip("/")).name
    folder = place.path.parent if isinstance(place, LocalPlace) else Path.cwd()
    try:
        job = submitter_for(cluster).submit(command, f"{_plain(name)}-{request.identity}", folder / f"{name}.logs")
    except DpdistError:
        place.remove(f"requests/{number:06d}.json")
        if not place.names("requests"):
            forget_requests(place)
        raise
    record(place, number, job)
    typer.echo(request.identity)
    told = f"{job.kind} {job.identity}, log {job.log or 'at the cluster'}"
    say(MESSAGES, f"{place.label} submitted ({told}). Watch it with: dpdist attach {shlex.quote(place.label)}")


def _plain(name: str) -> str:
    """A name of a job, restricted to characters that every queue accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:60] or "run"


def _new_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def _last(place: Place) -> int:
    """Number of the last checkpoint; 0 if there is none."""
    return max(commits(place), default=0)


def _required(file: Path, out: str) -> ClusterConfig:
    """The cluster, checked: its libraries are installed, and it can reach the run's place."""
    cluster = read_cluster(file)
    cluster.require()
    cluster.check_run_path(out)
    return cluster


def _request_of(place: Place) -> Request:
    """The request in force, or a new one to continue the run that is there, which was started in the foreground, or
    whose replacement could not start."""
    if newest_request(place):
        number, request = latest_request(place)
        end = recorded(place, number, End)
        failed = end is not None and end.status == FAILED and not has_begun(place, request)
        if not (failed and commits(place)):
            return request
    run = run_to_resume(place.label)
    if not run.settings.get("data"):
        raise InputError(f"{place.label} stores no path of its data; continue it from Python.")
    return Request(_new_id(), METHODS[run.method].command, run.settings, after=_last(place), fresh=False)


def _refuse_if_alive(place: Place) -> tuple[int, int]:
    """Numbers of the request and of the lease in force, 0 if there is none; raises :class:`CheckpointError` if a
    coordinator works on the run, or is about to start."""
    before = newest_request(place)
    number, found = latest_lease(place)
    if found is not None and lives(place, number, found, partial(say, MESSAGES)):
        end = f"stop it first with: dpdist cancel {place.label}" if before else "stop that process first."
        raise CheckpointError(f"{place.label} is being written by another coordinator ({describe(found)}); {end}")
    if before and _is_coming_up(place, before, number):
        raise CheckpointError(f"{place.label} is already submitted and will start; see: dpdist status {place.label}")
    return before, number


def _is_coming_up(place: Place, number: int, lease: int) -> bool:
    """Whether the coordinator of a request is waiting in a queue, or has started but not yet taken the lease."""
    request = latest_request(place)[1]
    if copied_from(place, request) is not None:
        return False
    # The process that made the request may be about to start its job.
    job = wait_until(lambda: recorded(place, number, Job), time.monotonic() + _STARTING)
    end = recorded(place, number, End)
    if job is None or (end is not None and end.status != AGAIN):
        return False
    state = submitter_of(job).state(job)[0]
    return state is JobState.WAITING or (state is JobState.RUNNING and lease <= request.lease)


def _watched(request: Request, address: str) -> tuple[bool, bool]:
    """Follow a run on its scheduler until either ends; returns whether anything was shown, and whether it was the run
    that ended."""
    expect_losses()
    try:
        client = parse_cluster(request.cluster).watch(address)
    except InputError:
        return False, False  # between two starts of the coordinator, or unreachable
    with closing(client), suppress(ConnectionError):
        if follow(client, MESSAGES, request.identity) is None:
            raise KeyboardInterrupt
        return True, True
    return True, False


def _ending(place: Place) -> End | None:
    """How the current run ended, if its coordinator recorded it or its job is over."""
    number, request = latest_request(place)
    end, job = recorded(place, number, End), _job_of(place, number, request)
    state, words = _asked(job)
    if state is not JobState.ENDED or (job is None and end is None):
        return None
    if end is not None:
        since = found_since(place, request) if end.status else None
        return end if since is None else End(0, since)
    assert job is not None, "a run without a job has an end"
    return End(FAILED, f"the coordinator ended without a message ({words}); its log is {job.log or 'at the cluster'}.")


def _job_of(place: Place, number: int, request: Request) -> Job | None:
    """The job of a request. If it was not recorded, or another process continues the run, the process that holds the
    run. Copies of a run do not get the job of the original."""
    copied = copied_from(place, request) is not None
    job = None if copied else recorded(place, number, Job)
    if job is not None and not (worked_on(place) and _asked(job)[0] is JobState.ENDED):
        return job
    _, found = latest_lease(place)
    if found is None or found["released"] or (copied and not worked_on(place)):
        return job
    owner = Owner(**found["owner"])
    return process_job(owner.host, owner.pid, owner.began)


def _asked(job: Job | None) -> tuple[JobState, str]:
    if job is None:
        return JobState.ENDED, "no job was started"
    try:
        return submitter_of(job).state(job)
    except (DpdistError, OSError) as error:
        return JobState.UNKNOWN, str(error)


def _status(place: Place) -> dict[str, object]:
    """Everything known about a run, as plain values."""
    values: dict[str, object] = {"run": place.label}
    if newest_request(place):
        number, request = latest_request(place)
        job, end = _job_of(place, number, request), recorded(place, number, End)
        state, words = _asked(job)
        values |= {"id": request.identity, "command": request.command, "cluster": request.cluster["type"]}
        values["copy_of"] = copied_from(place, request)
        if job is not None:
            values |= {
                "job": f"{job.kind} {job.identity}",
                "state": state.value,
                "queue": words,
                "log": job.log or None,
            }
        if end is not None and state not in (JobState.WAITING, JobState.RUNNING):
            # A requeued job has an end from its previous start.
            values["ended"] = f"status {end.status} at {end.time}: {end.sentence}"
    elif not commits(place) and preparation_told(place) is None:
        raise CheckpointError(f"there is no dpdist run at {place.label}; check the path.")
    if (where := preparation_told(place)) is not None:
        values["preparing"] = where
    reached = _reached(place)
    if "state" not in values:
        values |= _state(place, reached.get("stop_reason") is not None)
    _, found = latest_lease(place)
    if found is not None and not found["released"]:
        values["coordinator"] = describe(found)
    return values | reached


def _state(place: Place, ended: bool) -> dict[str, object]:
    """The state of a run without a job, as far as it is known at once."""
    if ended:
        return {"state": "ended"}
    working = worked_on(place)
    if working is None:
        return {}
    return {"state": "running"} if working else {"state": "stopped", "go_on": f"dpdist resume {place.label}"}


def _reached(place: Place) -> dict[str, object]:
    """The contents of the last checkpoint."""
    if not commits(place):
        return {"checkpoint": "none yet"}
    store = open_run(place.label)
    values = {"checkpoint": store.number, "checkpoint_time": store.attributes["time"]}
    laps = stored_laps(store)
    if not laps:
        return values | {"laps": 0}
    fitted, last = store.model(), laps[-1]
    told = {"elbo": last.elbo, f"elbo_per_{last.unit}": last.per_unit, "stop_reason": fitted.stop}
    return values | {"laps": len(laps), "n_components": last.n_components, "rows": fitted.rows} | told
