"""The passes before the first lap: killed wherever one will, a run ends at the bits of one that was left in peace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

import dpdist
from dpdist.cli.root import app
from dpdist.cluster.coordinator import prepared
from dpdist.cluster.submitted import Request
from dpdist.core.errors import CheckpointError, InputError, OutputExistsError
from dpdist.core.places import place_of
from dpdist.core.trees import Joined, join_pairwise
from dpdist.data import ArraySource, as_source
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_partition
from dpdist.runs import passes
from dpdist.runs.config import parse_config
from dpdist.runs.passes import KeptPasses, block_of
from dpdist.storage.preparing import PreparationStore
from tests.runs import bits, clusters, mixture

ROWS = clusters(0, rows=400, columns=3)
WORDS = sparse.csr_array(np.random.default_rng(0).poisson(0.7, size=(120, 12)).astype(float))
LABELS = np.random.default_rng(1).integers(4, size=400)


class Killed(BaseException):
    """What a kill leaves: nothing that runs afterwards."""


def fitted_by(model) -> tuple[object, object]:
    return model, ArraySource(ROWS, partition_rows=80)


#: Kinds of runs, whose preparations have all the stages there are.
KINDS = {
    "k-means++ of clusters' prior in principal components": lambda: fitted_by(
        mixture(
            family=dpdist.families.Gaussian(),
            initial="k-means++",
            initial_components=4,
            prior="clusters",
            background=0.02,
            row_transform=dpdist.TransformPlan(pca=2),
            max_laps=1,
        )
    ),
    "a pass over all rows": lambda: fitted_by(mixture(initial="sva", initial_rows=None, max_laps=1)),
    "labels": lambda: fitted_by(mixture(initial=LABELS, max_laps=1)),
    "sva": lambda: fitted_by(dpdist.SVA(dpdist.families.DiagonalGaussian())),
    "topics": lambda: (
        dpdist.HDPTopicModel(initial_topics=3, max_laps=1),
        ArraySource(WORDS, partition_rows=40),
    ),
}
QUICK = ("labels", "sva", "topics")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def everything_kept(monkeypatch) -> None:
    """However little was lost."""
    for name, value in {"LOSS": 0.0, "NOTE": 0.0, "LEAST": 1}.items():
        monkeypatch.setattr(passes, name, value)


def run_of(model, source, path, **given) -> None:
    for _ in model.iter_fit(source, checkpoint_path=path, **given):
        pass


def killed_after(monkeypatch, count: int, begin) -> list[str]:
    """What was kept until a run was killed, when it had kept so many things."""
    kept: list[str] = []
    keep = PreparationStore.keep

    def counted(store, name, value) -> None:
        keep(store, name, value)
        kept.append(name)
        if len(kept) == count:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PreparationStore, "keep", counted)
        with suppress(Killed):
            begin()
    return kept


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k not in QUICK)])
def test_a_run_killed_after_anything_it_kept_ends_at_the_same_bits(kind, everything_kept, monkeypatch, tmp_path):
    model, source = KINDS[kind]()
    run_of(model, source, None)
    every = killed_after(monkeypatch, -1, lambda: run_of(*KINDS[kind](), tmp_path / "whole.zarr"))
    assert (len(every) >= 4 and len(set(every)) >= 2) or kind == "sva", every
    # inside the first pass, and every moment at which one stage gives way to the next
    ends = [place + 1 for place in range(len(every)) if every[place + 1 : place + 2] != [every[place]]]
    for count in sorted({2, *ends}):
        path = tmp_path / f"{count}.zarr"
        killed_after(monkeypatch, count, lambda path=path: run_of(*KINDS[kind](), path))
        assert PreparationStore.found(place_of(path)) is not None
        left = killed_after(monkeypatch, -1, lambda path=path: resumed(path, kind))
        assert len(left) == len(every) - count, "nothing that was kept is done again"
        assert bits(dpdist.load(path)) == bits(model)
        assert not (path / "preparing").exists()


def resumed(path, kind):
    return dpdist.resume(path, KINDS[kind]()[1])


@given(count=st.integers(1, 200), power=st.integers(0, 4), killed=st.integers(0, 200))
def test_branches_lead_to_the_tree_of_all_values(count, power, killed) -> None:
    def join(first: str, second: str) -> str:
        return f"({first} {second})"

    letters, step = [str(i) for i in range(count)], 2**power
    joined: Joined[str] = Joined(join)
    for begin in range(0, count, step):
        if begin >= killed:
            joined = Joined(join, joined.parts)
        joined.add(join_pairwise(letters[begin : begin + step], join))
    assert joined.total() == join_pairwise(letters, join)


def test_blocks_are_few_and_branches() -> None:
    for count in range(1, 3000, 7):
        step = block_of(count)
        assert step & (step - 1) == 0 and step >= 8 and count <= step * passes.BLOCKS


def test_little_work_is_not_kept(monkeypatch, tmp_path) -> None:
    model, source = KINDS["labels"]()
    assert not killed_after(monkeypatch, -1, lambda: run_of(model, source, tmp_path / "run.zarr"))


class Ordered(SerialBackend):
    """Two threads that say so; it notes what is asked for and what is fetched."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def threads(self) -> int:
        return 2

    def total(self, function, *columns):
        self.seen.append("total")
        return super().total(function, *columns)

    def fetch(self, refs):
        self.seen.append("fetch")
        return super().fetch(refs)


def test_workers_are_given_the_next_blocks_before_the_last_is_in(everything_kept, tmp_path) -> None:
    source, backend = ArraySource(ROWS, partition_rows=80), Ordered()
    store = PreparationStore.begin(place_of(tmp_path / "run.zarr"), mixture().spec(), None, {}, {})
    parts = source.partitions
    columns = [ROWS.shape[1]] * len(parts)
    found = KeptPasses(backend, store).gathered("pass", summarise_partition, parts, [True] * len(parts), columns)
    expected = SerialBackend().gathered("pass", summarise_partition, parts, [True] * len(parts), columns)
    np.testing.assert_array_equal(found.scatter, expected.scatter)
    assert backend.seen == ["total"] * 3 + ["fetch", "total"] * 2 + ["fetch"] * 3
    store.remove()
    assert not (tmp_path / "run.zarr").exists()


def test_rows_edited_since_the_kill_are_told(everything_kept, monkeypatch, tmp_path) -> None:
    path, rows = tmp_path / "run.zarr", ROWS.copy()
    killed_after(monkeypatch, 2, lambda: run_of(KINDS["labels"]()[0], ArraySource(rows, partition_rows=80), path))
    edited = rows.copy()
    edited[100, 1] += 1.0
    with pytest.raises(CheckpointError, match=r"partition 1 .* has other rows or weights"):
        dpdist.resume(path, ArraySource(edited, partition_rows=80))
    with pytest.raises(CheckpointError, match="the data changed"):
        dpdist.resume(path, ArraySource(rows[:300], partition_rows=80))
    assert dpdist.resume(path, ArraySource(rows, partition_rows=80)).n_components_, "and it goes on with those it had"


def test_data_that_are_refused_leave_nothing(tmp_path) -> None:
    broken = ROWS.copy()
    broken[7, 0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        run_of(mixture(), ArraySource(broken), tmp_path / "run.zarr")
    assert not (tmp_path / "run.zarr").exists()


def test_a_run_that_is_being_prepared_is_named_and_not_replaced_unasked(everything_kept, monkeypatch, tmp_path) -> None:
    path = tmp_path / "run.zarr"
    begin = partial(run_of, *KINDS["labels"](), path)
    killed_after(monkeypatch, 2, begin)
    where = "data summary, 2 of 5 partitions"
    with pytest.raises(OutputExistsError, match=f"being prepared .{where}.; continue with: dpdist resume"):
        begin()
    with pytest.raises(CheckpointError, match=f"no checkpoint yet; the run is being prepared .{where}."):
        dpdist.load(path)
    shown, told = (CliRunner().invoke(app, [command, str(path)]) for command in ("show", "status"))
    words = " ".join(shown.stdout.split())  # however it was wrapped
    assert where in words and "dpdist resume" in words
    assert where in told.stdout
    assert json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).stdout)["preparing"] == where
    begin(overwrite=True)
    assert dpdist.load(path).history_.sizes["lap"] == 1


def test_what_is_kept_is_believed_only_whole(everything_kept, monkeypatch, tmp_path) -> None:
    path = tmp_path / "run.zarr"
    killed_after(monkeypatch, 3, lambda: run_of(*KINDS["labels"](), path))
    store = PreparationStore.found(place_of(path))
    assert store is not None
    group = path / store.told["entries"]["1 data summary"]["group"] / "zarr.json"
    group.write_bytes(group.read_bytes().replace(b"3", b"4", 1))
    with pytest.raises(CheckpointError, match="is damaged"):
        resumed(path, "labels")


@pytest.fixture
def rows_path(tmp_path) -> str:
    path = str(tmp_path / "rows.zarr")
    rows = clusters(0, rows=1280, columns=3)
    array = zarr.create_array(path, shape=rows.shape, dtype="float64", chunks=(256, 3))
    array[...] = rows
    return path


def test_a_process_that_is_killed_is_gone_on_with_by_the_command(rows_path, tmp_path) -> None:
    """In the middle of the first pass, with SIGKILL; resumed in this process, in which nothing but results is kept."""
    code = (
        "import itertools, os, signal, sys\n"
        "from dpdist.runs import passes\n"
        "from dpdist.storage.preparing import PreparationStore\n"
        "passes.LOSS, passes.NOTE, passes.LEAST, keep = 0.0, 0.0, 1, PreparationStore.keep\n"
        "kept = itertools.count(1)\n"
        "def last(store, name, value):\n"
        "    keep(store, name, value)\n"
        "    if next(kept) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "PreparationStore.keep = last\n"
        "from dpdist.cli.root import app\n"
        "app(sys.argv[1:])\n"
    )
    options = ["--initial", "k-means++", "--initial-components", "4", "--max-laps", "1", "--serial"]
    killed, whole = str(tmp_path / "killed.zarr"), str(tmp_path / "whole.zarr")
    command = [sys.executable, "-c", code, "fit", rows_path, "--out", killed, *options]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert "3 of 5 partitions" in CliRunner().invoke(app, ["status", killed]).stdout
    for arguments in (["resume", killed, "--serial"], ["fit", rows_path, "--out", whole, *options]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
    assert bits(dpdist.load(killed)) == bits(dpdist.load(whole))


def test_the_job_of_a_submitted_run_goes_on_with_its_passes(everything_kept, monkeypatch, rows_path, tmp_path) -> None:
    place = place_of(str(tmp_path / "run.zarr"))
    settings = parse_config("fit", {"data": rows_path, "max_laps": 1, "initial": "k-means++"}).tables
    request = Request("id", "fit", settings)
    begin = partial(prepared, place, request, SerialBackend())
    every = killed_after(monkeypatch, -1, lambda: begin().close())
    place.remove(*place.names(""), "")
    killed_after(monkeypatch, 4, begin)
    others = Request("another", "fit", {**settings, "random_state": 1})
    assert len(killed_after(monkeypatch, 4, partial(prepared, place, others, SerialBackend()))) == 4
    again = killed_after(monkeypatch, 4, begin)
    assert len(again) == 4, "another request begins anew"
    assert len(killed_after(monkeypatch, -1, lambda: begin().close())) == len(every) - 4


@pytest.mark.slow
def test_other_workers_go_on_to_the_same_bits(everything_kept, monkeypatch, rows_path, tmp_path) -> None:
    from dpdist.execution.connecting import local_backend

    def fit(path, backend) -> None:
        run_of(mixture(initial="sva", initial_rows=None, max_laps=2), as_source(rows_path), path, backend=backend)

    path, whole = tmp_path / "run.zarr", tmp_path / "whole.zarr"
    fit(whole, SerialBackend())
    for workers in (2, 1):
        backend = local_backend(workers, memory_limit="1GB")
        try:
            if workers == 2:
                killed_after(monkeypatch, 7, lambda backend=backend: fit(path, backend))
            else:
                dpdist.resume(path, as_source(rows_path), backend=backend)
        finally:
            backend.close()
    assert bits(dpdist.load(path)) == bits(dpdist.load(whole))
