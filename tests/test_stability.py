"""Laws of refits: clusters that are there come back, what was cut by hand does not, wherever the refits run."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import dpdist
from dpdist.cli.root import app
from dpdist.data import ArraySource, as_source
from dpdist.execution import SerialBackend
from dpdist.execution.base import Remote
from dpdist.execution.connecting import local_backend
from dpdist.inference import stability
from dpdist.inference.stability import refit
from dpdist.models.families import Gaussian
from dpdist.runs.opening import refit_stored
from dpdist.storage.checkpoint import RunStore
from tests.runs import mixture


@pytest.fixture(scope="module")
def groups() -> tuple[np.ndarray, np.ndarray]:
    """Rows of four groups, the first of which is cut in two by hand."""
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0], [30, 0], [0, 30], [30, 30]])
    owners = rng.integers(4, size=600)
    x = means[owners] + rng.normal(size=(600, 2))
    return x, np.where((owners == 0) & (x[:, 0] > 0), 4, owners)


def test_what_is_there_comes_back_and_halves_do_not(groups) -> None:
    x, owners = groups
    model = mixture(family=Gaussian(), initial=owners, moves=[], max_laps=1).fit(x)
    halves = np.unique(model.predict(x[np.isin(owners, (0, 4))]))
    model.moves = None
    problem = model.prepare(x).problem
    found = refit(problem, model._predictor, ArraySource(x), SerialBackend(), 2, 12)
    assert found.jaccard.shape == (2, 5) and found.n_components.tolist() == [4, 4]
    assert (np.delete(found.jaccard, halves, axis=1) > 0.99).all() and (found.jaccard[:, halves] < 0.8).all()
    np.testing.assert_allclose(found.mean, found.jaccard.mean(axis=0))
    assert repr(found).startswith("Stability(clusters=5, refits=2, mean=[")


def test_refits_differ_where_groups_overlap() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(300, 2)), rng.normal(size=(300, 2)) + 2])
    model = mixture(family=Gaussian(), initial=np.repeat([0, 1], 300), moves=[], max_laps=2).fit(x)
    found = refit(model._problem, model._predictor, ArraySource(x), SerialBackend(), 2, 2).jaccard
    assert (found > 0.5).all() and (found < 1).all() and (found[0] != found[1]).all()


def test_the_jaccard_coefficient_is_of_the_best_match() -> None:
    table = np.array([[6.0, 2.0, 0.0], [0.0, 3.0, 5.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(stability._jaccard(table), [6 / 8, 5 / 8, 0])


def test_a_half_of_every_partition_is_drawn_refit_by_refit_and_has_its_own_weights(groups) -> None:
    x, weights = groups[0], np.arange(1.0, 601.0)
    drawn = []
    for seed in (1, 2, 1):
        source = ArraySource(x, weights, partition_rows=251)
        parts = [stability._Half(p.index, p.start, p.stop, p, seed) for p in source.partitions]
        found = [part.load()[1] for part in parts]
        assert [np.count_nonzero(own) for own in found] == [-(-part.rows // 2) for part in parts]
        drawn.append(np.concatenate(found) / weights)
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert set(np.unique(drawn[0])) == {0.0, 1.0}
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.15
    assert len({tuple(own[:100]) for own in found}) == len(found), "partitions have halves of their own"


def test_few_rows_have_a_half() -> None:
    source = ArraySource(np.zeros((1, 2)))
    (only,) = stability._Halved(source, 0).partitions
    assert only.load()[1].tolist() == [1.0]


def test_refits_open_no_clusters_that_nobody_saw() -> None:
    """Of rows that are broad-tailed or skewed, of which a bootstrap doubles some."""
    rng = np.random.default_rng(0)
    x = np.exp(0.7 * rng.normal(size=(1500, 4)))
    model = mixture(family=Gaussian(), max_laps=30, initial="one").fit(x)
    found = refit(model._problem, model._predictor, ArraySource(x), SerialBackend(), 2, 8)
    assert (found.n_components <= model.n_components_ + 1).all()


def test_it_is_told_how_refits_go(groups) -> None:
    model, told = mixture(family=Gaussian(), initial=groups[1], moves=[], max_laps=1).fit(groups[0]), []
    refit(
        model._problem, model._predictor, ArraySource(groups[0]), SerialBackend(), 2, 3, lambda *each: told.append(each)
    )
    laps = [[each[1] for each in told if each[0] == number] for number in (1, 2)]
    assert all(own == [*range(1, len(own) + 1)] and len(own) <= 3 for own in laps)
    assert [each[3] for each in told] == [place == len(own) - 1 for own in laps for place in range(len(own))]


@pytest.mark.parametrize(("quiet", "count"), [(False, 3), (True, 1)])
def test_a_refit_ends_where_nothing_moves_or_after_so_many_laps(groups, monkeypatch, quiet, count) -> None:
    model, seen, laps = mixture(family=Gaussian(), initial=groups[1], moves=[], max_laps=1), [], stability.laps
    model.fit(groups[0])

    def counted(*given):
        for state, info in islice(laps(*given), 5):
            seen.append(info.lap)
            yield replace(state, quiet=quiet), info

    monkeypatch.setattr(stability, "laps", counted)
    refit(model._problem, model._predictor, ArraySource(groups[0]), SerialBackend(), 1, 3)
    assert seen == [*range(1, count + 1)]


def test_rows_that_come_back_count_by_their_own_weights(groups) -> None:
    x, weights = groups[0], np.random.default_rng(1).random(600)
    model = mixture(family=Gaussian(), initial=groups[1], moves=[], max_laps=1).fit(x, sample_weight=weights)
    source = ArraySource(x, weights, partition_rows=250)
    table = stability._refit(model._problem, model._predictor, source, SerialBackend(), 0, 1, lambda *_: None)
    np.testing.assert_allclose(table.sum(axis=1), weights @ np.eye(len(table))[model.predict(x)])


def test_refits_go_on_where_they_were_stopped_to_the_same_bits(groups, tmp_path, monkeypatch) -> None:
    run, rows, made, refit_once = tmp_path / "run.zarr", as_source(groups[0]), [], stability._refit
    for _ in mixture(family=Gaussian(), max_laps=2, initial=groups[1]).iter_fit(rows, checkpoint_path=run):
        pass
    monkeypatch.setattr(stability, "_refit", lambda *given: (made.append(given[4]), refit_once(*given))[1])

    def asked(refits: int, laps: int = 1, killed_at: int | None = None) -> stability.Stability:
        def tell(number: int, *_: object) -> None:
            if number == killed_at:
                raise KeyboardInterrupt

        return refit_stored(run, rows, SerialBackend(), refits, laps, tell)

    with pytest.raises(KeyboardInterrupt):
        asked(3, killed_at=3)
    assert len(dpdist.load(run).stability_) == 2 and made == [0, 1, 2]
    found, whole = asked(3), dpdist.load(run).stability(groups[0], 3, 1)
    assert made[3:] == [2, 0, 1, 2]
    for one in (found, dpdist.load(run).stability_):
        np.testing.assert_array_equal(one.jaccard, whole.jaccard)
        np.testing.assert_array_equal(one.n_components, whole.n_components)
    np.testing.assert_array_equal(asked(2).jaccard, whole.jaccard[:2])
    assert len(made) == 7 and len(dpdist.load(run).stability_) == 3
    assert len(asked(1, laps=2)) == 1 and made[7:] == [0], "refits of other lengths are others"


@pytest.mark.slow
def test_refits_on_workers_are_those_of_this_process_also_of_rows_that_workers_hold(groups) -> None:
    x, owners = groups
    model = mixture(family=Gaussian(), initial=owners, max_laps=2).fit(x)
    given = model._problem, model._predictor
    here = refit(*given, ArraySource(x, partition_rows=250), SerialBackend(), 2, 2)
    backend = local_backend(2)
    try:
        there = refit(*given, ArraySource(x, partition_rows=250), backend, 2, 2)
        with backend.client.as_current():
            held = as_source(da.from_array(x, chunks=(250, 2)).persist())
            assert all(isinstance(part, Remote) for part in held.partitions)
            of_held = refit(*given, held, backend, 2, 2)
    finally:
        backend.close()
    for found in (there, of_held):
        np.testing.assert_array_equal(here.jaccard, found.jaccard)


def test_the_command_keeps_what_it_finds(groups, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("rows.zarr", shape=groups[0].shape, dtype="float64", chunks=(300, 2))[...] = groups[0]
    model = mixture(family=Gaussian(), max_laps=3, initial=groups[1])
    for _ in model.iter_fit("rows.zarr", checkpoint_path="run.zarr"):
        pass
    app(["tree", "run.zarr", "--serial"], standalone_mode=False)
    app(["stability", "run.zarr", "--serial", "--refits", "2", "--max-laps", "1"], standalone_mode=False)
    assert "mean Jaccard" in capsys.readouterr().out
    loaded, store = dpdist.load("run.zarr"), RunStore.open("run.zarr")
    stored = xr.open_zarr("run.zarr", group=f"{store.attributes['generation']}/stability", consolidated=False)
    expected = loaded.stability(groups[0], 2, 1).jaccard
    np.testing.assert_array_equal(stored["jaccard"].values, expected)
    assert len(loaded.tree_) == loaded.n_components_, "one finding leaves the other"
    app(["sva", "rows.zarr", "--out", "pass.zarr", "--serial"], standalone_mode=False)
    dpdist.SVA().fit(groups[0]).save("of_memory.zarr")  # without a path of data
    for path in ("pass.zarr", "of_memory.zarr"):
        with pytest.raises(dpdist.InputError, match="is a sequential pass, which cannot be refitted"):
            app(["stability", path, "--serial"], standalone_mode=False)
    with pytest.raises(dpdist.InputError, match="use stability of the model from which it was cut"):
        loaded.cut(2).stability(groups[0])
    for wrong in ({"refits": 0}, {"max_laps": 0}):
        with pytest.raises(dpdist.InputError, match=next(iter(wrong))):
            loaded.stability(groups[0], **wrong)
