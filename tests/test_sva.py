"""Passes as an estimator: one result wherever and however rows arrive, kept on disk, extended, and plain refusals."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np
import pytest
import xarray as xr
import zarr
from dask import delayed
from scipy import sparse
from scipy.integrate import trapezoid
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dpdist
from dpdist import SVA
from dpdist.execution import SerialBackend
from dpdist.execution.connecting import local_backend
from dpdist.execution.dask import DaskBackend
from dpdist.inference.sva import Conjugate, DistanceTest, EvidenceTest, OpeningRule, PruneMerge
from dpdist.inference.sva.combine import pass_over
from dpdist.inference.sva.prune_merge import MergeTest, empty_state, prune_and_merge
from dpdist.inference.sva.sequence import Rounds, last_look
from dpdist.models.families import Bernoulli, DiagonalGaussian, Gaussian, IsotropicGaussian, Multinomial, Poisson
from dpdist.models.likelihoods import Dirichlet
from tests.cases import FAMILIES, FamilyCase, filled
from tests.runs import clusters, is_finished, mixture, source_of
from tests.test_nonconjugate import proportions
from tests.test_sequential import assert_close

CASES = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
SPHERES = IsotropicGaussian(variance=1.0)


def sva(family: Any = SPHERES, **parameters: Any) -> SVA:
    """A seeded pass with fewer short-lived clusters than by default."""
    return SVA(family, **{"random_state": 0, "threshold": 0.01, **parameters})


def grouped(case: FamilyCase, rows: int, columns: int = 4, seed: int = 0) -> np.ndarray:
    """Rows of three groups in random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(
        np.concatenate([case.rows(rng, rows // 3, columns) + (6.0 * g if case.real else 0.0) for g in range(3)])
    )


def grid(seed: int, rows: int = 1800, spacing: float = 6.0) -> np.ndarray:
    """Rows of nine round clusters, some standard deviations apart."""
    rng = np.random.default_rng(seed)
    centres = spacing * np.stack(np.meshgrid(np.arange(3), np.arange(3)), axis=-1).reshape(-1, 2)
    return centres[rng.integers(9, size=rows)] + rng.normal(size=(rows, 2))


def bits(model: SVA) -> tuple[Any, ...]:
    """Everything that the rest of a pass depends on, to the last bit."""
    running = model._fitted.total
    counts = (running.rows, running.seen, running.next_check, running.pruned, model._fitted.total.next_id)
    return running.table.tobytes(), running.ids.tobytes(), running.overlap.tobytes(), counts


def stored(folder: Path, rows: np.ndarray, name: str = "rows.zarr", chunk: int = 256) -> str:
    """Path of rows on disk."""
    array = zarr.create_array(folder / name, shape=rows.shape, dtype="float64", chunks=(chunk, rows.shape[1]))
    array[...] = rows
    return str(folder / name)


def passed(model: SVA, x: Any, **options: Any) -> SVA:
    """The model after a whole pass."""
    for _ in model.iter_fit(x, **options):
        pass
    return model


# one pass over prepared rows


@CASES
@pytest.mark.parametrize("partition_rows", [5000, 111])
def test_a_pass_in_order_is_the_pass_over_prepared_rows_whatever_the_partitions(
    case: FamilyCase, partition_rows: int
) -> None:
    x = grouped(case, 1500)
    given = filled(case, x)
    family, prepared = given, x
    if family.has_location:
        family, prepared = family.about(x.mean(axis=0)), x - x.mean(axis=0)
    learner, rule, pruning = Conjugate(family, x.shape[1]), OpeningRule(2.0, 0.01), PruneMerge(0.002, EvidenceTest())
    running = pass_over(
        [(prepared, np.ones(len(x)))], empty_state(learner.width, pruning), learner, rule, pruning, np.float64
    )
    running = prune_and_merge(running, learner, rule, pruning)
    model = sva(given, concentration=2.0, prune=0.002, parallel=False, shuffle=False)
    model.fit(source_of(x, partition_rows))
    assert_close(model._fitted.total.table, running.table)
    assert model.pruned_weight_ == pytest.approx(running.pruned, rel=1e-8) and model.rows_seen_ == len(x)
    assert len(set(model.component_ids_)) == model.n_components_


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("most", [1, 3, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
def test_rounds_double_and_take_every_partition_once(count: int, most: int, shuffle: bool) -> None:
    partitions: list[Any] = list(range(count))
    rounds = Rounds(most=most, shuffle=shuffle).of(partitions, 3)
    taken = list(itertools.chain(*rounds))
    assert sorted(taken) == partitions and (shuffle or taken == partitions)
    done = 0
    for each in rounds:
        assert len(each) == min(max(1, done), most, count - done)
        done += len(each)
    assert rounds == Rounds(most=most, shuffle=shuffle).of(partitions, 3)


def test_rounds_of_a_sequential_pass_are_single_and_orders_follow_the_seed() -> None:
    partitions: list[Any] = list(range(30))
    assert [len(each) for each in Rounds(parallel=False).of(partitions, 0)] == [1] * 30
    task = [tuple(itertools.chain(*Rounds().of(partitions, seed))) for seed in range(4)]
    assert len(set(task)) == 4


def test_a_likelihood_without_a_conjugate_prior_passes_one_partition_at_a_time() -> None:
    x = proportions(900, 4, seed=0)
    side, single = (sva(Dirichlet(30.0), parallel=parallel).fit(source_of(x, 100)) for parallel in (True, False))
    assert bits(side) == bits(single) and side.history_.sizes["lap"] == 9


# checkpoints


@pytest.fixture(scope="module")
def rows_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows on disk, in twelve partitions."""
    return stored(tmp_path_factory.mktemp("rows"), clusters(0, rows=3000, columns=3, groups=8, spread=4.0))


PASSES = {
    "side by side": lambda: sva(),
    "one by one": lambda: sva(parallel=False),
    "float32": lambda: sva(compute_dtype="float32", round_partitions=3),
    "by distance": lambda: sva(merge="distance"),
}


def broken_off(model: SVA, x: Any, run: Path, rounds: int) -> None:
    """A pass that stopped after some rounds, its checkpoint written."""
    for _, info in model.iter_fit(x, checkpoint_path=run, checkpoint_seconds=0.0):
        if info.lap == rounds:
            break


def rounds_of(model: SVA) -> xr.Dataset:
    """The history, without what no two runs share."""
    times = [name for name, values in model.history_.items() if values.attrs["units"] == "s"]
    return model.history_.drop_vars([*times, "worker_threads"])


@pytest.fixture(scope="module")
def undisturbed(rows_path: str) -> Callable[[str], SVA]:
    """The finished pass of a kind."""
    return cache(lambda kind: PASSES[kind]().fit(rows_path))


@pytest.mark.parametrize("kind", list(PASSES))
@pytest.mark.parametrize("rounds", [1, 3])
def test_resume_equals_the_undisturbed_pass_to_the_bit(
    tmp_path: Path, rows_path: str, undisturbed: Callable[[str], SVA], kind: str, rounds: int
) -> None:
    whole = undisturbed(kind)
    assert whole.history_.sizes["lap"] > 3
    broken_off(PASSES[kind](), rows_path, tmp_path / "run.zarr", rounds)
    assert not is_finished(tmp_path / "run.zarr")
    again = dpdist.resume(tmp_path / "run.zarr", rows_path)
    assert bits(again) == bits(whole) == bits(dpdist.load(tmp_path / "run.zarr"))
    xr.testing.assert_identical(rounds_of(again), rounds_of(whole))
    xr.testing.assert_identical(again.components_, whole.components_)


def test_a_likelihood_without_a_conjugate_prior_resumes_to_the_same_bits(tmp_path: Path) -> None:
    source = source_of(proportions(900, 4, seed=2), 100)
    for law in (Dirichlet(30.0), Dirichlet(eta=0.5, draws=50)):
        run = tmp_path / f"{law.draws}.zarr"
        broken_off(sva(law, forgetting=0.6, own_clock=False), source, run, 4)
        whole = sva(law, forgetting=0.6, own_clock=False).fit(source)
        assert bits(dpdist.resume(run, source)) == bits(whole)


def test_a_pass_resumes_from_before_its_first_round_and_after_its_last(tmp_path: Path, rows_path: str) -> None:
    whole = sva().fit(rows_path)
    sva().prepare(rows_path, checkpoint_path=tmp_path / "run.zarr")
    with pytest.raises(dpdist.InputError, match=r"no finished lap yet; wait for one, or continue with: dpdist resume"):
        dpdist.load(tmp_path / "run.zarr")
    for _ in range(2):
        assert bits(dpdist.resume(tmp_path / "run.zarr", rows_path)) == bits(whole)


def test_changed_data_are_refused_at_resume(tmp_path: Path) -> None:
    rows = grid(0)
    broken_off(sva(), rows, tmp_path / "run.zarr", 2)
    for other in (rows + 1.0, rows[:-1], rows.astype(np.float32)):
        with pytest.raises(dpdist.CheckpointError, match="the data changed since the checkpoint"):
            dpdist.resume(tmp_path / "run.zarr", other)
    with pytest.raises(dpdist.CheckpointError, match="the data changed since the checkpoint"):
        dpdist.resume(tmp_path / "run.zarr", rows, sample_weight=np.full(len(rows), 2.0))


LEARNERS = {
    "spheres": (lambda: sva(), lambda: grid(1)),
    "transformed": (
        lambda: sva(Gaussian(), row_transform=dpdist.TransformPlan(center=True, scale=True, pca=2)),
        lambda: clusters(1),
    ),
    "counts": (lambda: sva(Multinomial(pseudocount=0.5)), lambda: grouped(FAMILIES[4], 600)),
    "by distance": (lambda: sva(merge="absolute distance", merge_threshold=0.05), lambda: grid(1)),
    "untidied": (lambda: sva(merge=None, prune=0.0, max_components=20), lambda: grid(1)),
    "proportions": (lambda: sva(Dirichlet(), own_clock=False), lambda: proportions(900, 4, seed=3)),
    "Monte Carlo": (lambda: sva(Dirichlet(draws=100, natural=False)), lambda: proportions(400, 3, seed=3)),
}
EVERY_LEARNER = pytest.mark.parametrize("name", list(LEARNERS))


@EVERY_LEARNER
def test_a_saved_model_is_the_model_to_the_bit(tmp_path: Path, name: str) -> None:
    make, draw = LEARNERS[name]
    x = draw()
    model = make().fit(x, holdout=x[:100])
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    assert bits(again) == bits(model)
    for method in ("predict", "predict_proba", "score_samples"):
        np.testing.assert_array_equal(getattr(again, method)(x), getattr(model, method)(x))
    xr.testing.assert_identical(again.history_, model.history_)
    xr.testing.assert_identical(again.components_, model.components_)
    assert (again.rows_seen_, again.pruned_weight_, again.n_features_in_) == (
        model.rows_seen_,
        model.pruned_weight_,
        x.shape[1],
    )


@EVERY_LEARNER
def test_a_loaded_model_goes_on_as_the_model_would(tmp_path: Path, name: str) -> None:
    make, draw = LEARNERS[name]
    x = draw()
    model = make().fit(x[:300])
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr").partial_fit(x[300:])
    assert bits(again) == bits(model.partial_fit(x[300:]))


@EVERY_LEARNER
def test_xarray_alone_reads_a_model_and_every_array_says_what_it_is(tmp_path: Path, name: str) -> None:
    make, draw = LEARNERS[name]
    model, path = make().fit(draw()), tmp_path / "model.zarr"
    model.save(path)
    current = json.loads(sorted((path / "commits").iterdir())[-1].read_text())["generation"]
    components = xr.open_zarr(path, group=f"{current}/components", consolidated=False)
    np.testing.assert_array_equal(components["weight"].values, model.weights_)
    np.testing.assert_array_equal(components["id"].values, model.component_ids_)
    described = next(name for name in ("mean", "probability") if name in components)
    np.testing.assert_array_equal(components[described].values, model.components_[described].values)
    assert components[described].dims == ("component", "column")
    history = xr.open_zarr(path, group=f"{current}/history", consolidated=False)
    np.testing.assert_array_equal(history["rows"].values, model.history_["rows"].values)
    for group in (components, history):
        for key, variable in group.variables.items():
            assert variable.attrs["long_name"] != f"parameter {key}" and variable.attrs["units"]


def test_nothing_stored_is_pickled(tmp_path: Path) -> None:
    sva(Dirichlet()).fit(proportions(200, 3, seed=0)).save(tmp_path / "model.zarr")
    kinds = {json.loads(file.read_text()).get("data_type") for file in (tmp_path / "model.zarr").rglob("zarr.json")}
    assert kinds <= {None, "float64", "int64", "int8"}


def test_an_existing_output_is_refused_and_kept(tmp_path: Path) -> None:
    rows = grid(0, 400)
    model = sva().fit(rows)
    model.save(tmp_path / "model.zarr")
    other = sva(prune=0.0, merge=None).fit(rows)
    for write in (
        lambda: other.save(tmp_path / "model.zarr"),
        lambda: passed(other, rows, checkpoint_path=tmp_path / "model.zarr"),
    ):
        with pytest.raises(
            dpdist.OutputExistsError, match="exists; choose another name, or replace it with overwrite=True"
        ):
            write()
    assert bits(dpdist.load(tmp_path / "model.zarr")) == bits(model)
    other.save(tmp_path / "model.zarr", overwrite=True)
    assert bits(dpdist.load(tmp_path / "model.zarr")) == bits(other)


def test_a_saved_model_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    model = sva().fit(source_of(grid(0), 300))
    model.save(tmp_path / "model.zarr")
    with pytest.raises(dpdist.CheckpointError, match="a saved model, not a run"):
        dpdist.resume(tmp_path / "model.zarr", source_of(grid(1, 3600), 300))
    assert bits(dpdist.load(tmp_path / "model.zarr")) == bits(model)


# streams


def blocks_of(x: Any, sizes: tuple[int, ...] = (1, 299, 500, 40)) -> list[Any]:
    """Rows cut into blocks, the rest in the last."""
    bounds = [0, *np.cumsum(sizes), x.shape[0]]
    return [x[a:b] for a, b in itertools.pairwise(bounds)]


STREAMS = {
    "gaussian": (lambda: sva(Gaussian()), lambda: grid(2)),
    "spheres": (lambda: sva(), lambda: grid(2)),
    "dense counts": (lambda: sva(Poisson()), lambda: grouped(FAMILIES[6], 1500)),
    "sparse counts": (lambda: sva(Multinomial()), lambda: sparse.csr_array(grouped(FAMILIES[4], 1500))),
    "proportions": (lambda: sva(Dirichlet(20.0)), lambda: proportions(1500, 4, seed=4)),
}


@pytest.mark.parametrize("name", list(STREAMS))
def test_every_kind_of_stream_gives_the_same_bits(name: str) -> None:
    make, draw = STREAMS[name]
    x = draw()
    blocks = blocks_of(x)
    by_hand = make()
    for block in blocks:
        by_hand._take(*by_hand._advanced(block))
    assert by_hand.n_components_ > 1
    by_hand._take(by_hand._problem, last_look(by_hand._problem, by_hand._fitted.total), by_hand._history)
    empty = x[:0]
    streams = [
        (block for block in blocks),
        iter([empty, blocks[0], empty, empty, *blocks[1:], empty]),
        db.from_delayed([delayed(list)(part) for part in (blocks[:2], blocks[2:3], blocks[3:])]),
        db.from_sequence(blocks, npartitions=2),
    ]
    for stream in streams:
        assert bits(make().fit(stream)) == bits(by_hand)
    assert by_hand.rows_seen_ == x.shape[0]
    assert by_hand.weights_.sum() + by_hand.rest_weight_ == pytest.approx(1)


@pytest.mark.parametrize("family", [Multinomial(), Poisson(), Bernoulli()], ids=lambda family: family.name)
def test_sparse_streams_give_what_dense_ones_give(family: Any) -> None:
    x = np.minimum(grouped(FAMILIES[4], 900), 1.0 if family.name == "bernoulli" else np.inf)
    dense, thin = (sva(family).fit(iter(blocks_of(rows))) for rows in (x, sparse.csr_array(x)))
    assert_close(thin._fitted.total.table, dense._fitted.total.table)
    np.testing.assert_allclose(thin.score_samples(sparse.csr_array(x)), dense.score_samples(x), rtol=1e-8)


def test_a_stream_begins_anew_and_partial_fit_goes_on() -> None:
    x = grid(3)
    model = sva().fit(x)
    before = set(model.component_ids_)
    model.partial_fit(x + 30.0)
    assert model.rows_seen_ == 2 * len(x) and before < set(model.component_ids_)
    assert bits(model.fit(iter(blocks_of(x)))) == bits(sva().fit(iter(blocks_of(x))))
    assert bits(model.fit(x)) == bits(sva().fit(x))


def test_partial_fit_goes_on_as_the_parameters_say_by_then() -> None:
    model = sva().partial_fit(grid(3)).set_params(concentration=50.0, max_components=9)
    model.partial_fit(grid(3) + 60.0)
    assert model.n_components_ == 9
    assert model.rest_weight_ == pytest.approx(50.0 / (50.0 + model._fitted.total.weights.sum()))
    shares = proportions(200, 3, 0)
    with pytest.raises(dpdist.InputError, match="merge='evidence' needs a conjugate prior"):
        SVA(Dirichlet()).partial_fit(shares).set_params(merge="evidence").partial_fit(shares)


def test_the_first_block_fixes_what_the_data_decide() -> None:
    x = grid(3)
    model = sva(IsotropicGaussian(), row_transform=dpdist.TransformPlan(center=True, scale=True)).partial_fit(x[:50])
    preparation, family = model._problem.preparation, model._problem.learner.family
    model.partial_fit(x[50:] + 100.0)
    np.testing.assert_allclose(preparation.transform.shift, x[:50].mean(axis=0))
    assert model._problem.preparation is preparation and model._problem.learner.family is family


@pytest.mark.parametrize("blocks", [[], [np.zeros((0, 2))] * 3], ids=["none", "empty"])
def test_a_stream_without_rows_is_refused(blocks: list[np.ndarray]) -> None:
    for stream in (iter(blocks), db.from_delayed([delayed(list)(blocks)])):
        with pytest.raises(dpdist.InputError, match="a pass needs at least one row; the stream had none"):
            sva().fit(stream)


@pytest.mark.parametrize("good", [0, 1, 3])
def test_what_is_refused_leaves_the_model_before(good: int) -> None:
    blocks = [*blocks_of(grid(0))[:good], np.full((2, 2), np.nan)]
    model, before = sva().fit(grid(3)), bits(sva().fit(grid(3)))
    with pytest.raises(ValueError):
        model.fit(iter(blocks))
    assert bits(model) == before
    with pytest.raises(ValueError):
        model.partial_fit(np.concatenate([grid(0)[:100], blocks[-1]]))
    assert bits(model) == before
    fresh = sva()
    with pytest.raises(ValueError):
        fresh.partial_fit(blocks[-1])
    with pytest.raises(NotFittedError):
        fresh.predict(grid(3))
    assert bits(fresh.partial_fit(grid(3))) == bits(sva().partial_fit(grid(3)))


def test_a_stream_that_is_interrupted_leaves_the_clusters_so_far_and_partial_fit_goes_on() -> None:
    def interrupted() -> Iterator[np.ndarray]:
        yield x[:700]
        raise KeyboardInterrupt

    x, model = grid(0), sva().fit(grid(3))
    with pytest.raises(KeyboardInterrupt):
        model.fit(interrupted())
    assert model.rows_seen_ == 700
    assert bits(model.partial_fit(x[700:])) == bits(sva().fit(iter([x[:700], x[700:]])))


def test_weights_and_holdout_do_not_go_with_a_stream() -> None:
    x = grid(0)
    for extra in ({"sample_weight": np.ones(len(x))}, {"holdout": x}):
        with pytest.raises(dpdist.InputError, match=r"got a stream\. Call partial_fit with the weights of each block"):
            sva().fit(iter([x]), **extra)


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (lambda x: iter(x), "Expected 2D array"),
        (lambda x: iter([1.0, 2.0]), "Expected 2D array"),
        (lambda x: iter([x, x[:, :1]]), "rows should have 2 columns"),
        (lambda x: iter([x, np.where(x > 6, np.nan, x)]), "NaN or infinity"),
        (lambda x: iter([x, sparse.csr_array(x)]), "sparse"),
    ],
    ids=["rows", "numbers", "width", "NaN", "sparse"],
)
def test_a_stream_of_anything_but_blocks_is_refused(stream: Callable[[np.ndarray], Any], sentence: str) -> None:
    with pytest.raises(dpdist.InputError, match=sentence):
        sva().fit(stream(grid(0, 300)))


@pytest.mark.parametrize(
    ("family", "good", "bad"),
    [
        (Poisson(), np.ones((20, 2)), -np.ones((20, 2))),
        (Multinomial(), np.ones((20, 2)), np.full((20, 2), 0.5)),
        (Bernoulli(), np.ones((20, 2)), np.full((20, 2), 3.0)),
        (Dirichlet(), proportions(20, 2, seed=0), np.full((20, 2), 0.7)),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_later_rows_are_held_to_what_the_first_were(tmp_path: Path, family: Any, good: Any, bad: Any) -> None:
    model = sva(family).partial_fit(good)
    before = bits(model)
    with pytest.raises(dpdist.InputError):
        model.partial_fit(bad)
    assert bits(model) == before
    model.save(tmp_path / "model.zarr")
    with pytest.raises(dpdist.InputError):
        dpdist.extend(tmp_path / "model.zarr", bad)


# row weights


def test_a_row_of_weight_w_counts_w() -> None:
    x = grid(4)
    weights = np.random.default_rng(0).integers(0, 5, size=len(x)).astype(float)
    model = sva().fit(x, sample_weight=weights)
    running = model._fitted.total
    assert running.weights.sum() + model.pruned_weight_ == pytest.approx(weights.sum(), rel=1e-10)
    assert model.rows_seen_ == np.count_nonzero(weights) < len(x)
    assert model.weights_.sum() + model.rest_weight_ == pytest.approx(1)
    assert model.rest_weight_ == pytest.approx(1.0 / (1.0 + running.weights.sum()))
    labels = model.predict(x)
    found = np.bincount(labels, weights, minlength=model.n_components_)
    np.testing.assert_allclose(found, running.weights, atol=0.01 * len(x))


def test_streams_take_weights_by_partial_fit() -> None:
    x = grid(4)
    weights = np.random.default_rng(0).integers(1, 4, size=len(x)).astype(float)
    model = sva(merge=None, prune=0.0, parallel=False, shuffle=False)
    whole = clone(model).fit(x, sample_weight=weights)
    np.testing.assert_array_equal(model.partial_fit(x, sample_weight=weights).weights_, whole.weights_)
    assert model._fitted.total.weights.sum() == pytest.approx(weights.sum(), rel=1e-10)
    model.partial_fit(x[:500], sample_weight=weights[:500]).partial_fit(x[:10])
    assert model._fitted.total.weights.sum() == pytest.approx(weights.sum() + weights[:500].sum() + 10, rel=1e-10)


@pytest.mark.parametrize("merge", ["evidence", "distance", None])
@pytest.mark.parametrize("empty", [100, 200, 400])
def test_rows_of_weight_zero_leave_no_trace(merge: str | None, empty: int) -> None:
    x = grid(5, 800)
    weights = np.where(np.arange(800) < empty, 0.0, 1.0)
    family = IsotropicGaussian(1.0, 100.0, x.mean(axis=0))
    make = partial(sva, family, merge=merge, shuffle=False, prune=0.0)
    model = make().fit(source_of(x, 100, weights), holdout=x[:50])
    assert model._fitted.total.weights.sum() == pytest.approx(800 - empty)
    assert np.isfinite(model.history_["holdout_score"].values).all()
    single, rest = make(parallel=False).fit(source_of(x, 100, weights)), make(parallel=False).fit(x[empty:])
    np.testing.assert_allclose(single.weights_, rest.weights_, rtol=1e-8)
    assert model.component_ids_.min() >= 0 and len(set(model.component_ids_)) == model.n_components_


def test_rows_of_weight_zero_do_not_move_the_times_at_which_clusters_are_looked_at() -> None:
    x, weights = grid(0, 3000), np.random.default_rng(0).integers(0, 2, 3000)
    model = SVA(SPHERES).partial_fit(x, sample_weight=weights)
    rest = SVA(SPHERES).partial_fit(x[weights > 0])
    assert (model.rows_seen_, model._fitted.total.next_check) == (rest.rows_seen_, rest._fitted.total.next_check)
    np.testing.assert_allclose(model.weights_, rest.weights_, rtol=1e-8)


# extension


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """A saved model of nine clusters, with room for others."""
    sva(IsotropicGaussian(1.0, 1e4)).fit(grid(6, spacing=12.0)).save(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


def test_an_extension_keeps_ids_names_new_clusters_anew_and_counts_on(model_path: Path) -> None:
    before = dpdist.load(model_path)
    new = np.concatenate([grid(7, 900, 12.0), grid(7, 900, 12.0) + 36.0])
    model = dpdist.extend(model_path, new)
    assert model.n_components_ == 18 and list(model.component_ids_[:9]) == list(before.component_ids_)
    assert min(set(model.component_ids_) - set(before.component_ids_)) > before.component_ids_.max()
    assert model.rows_seen_ == 1800 + len(new)
    assert model.history_["rows"].values[-1] == 3600
    assert model.history_.sizes["lap"] > before.history_.sizes["lap"]
    assert model._fitted.total.weights.sum() + model.pruned_weight_ == pytest.approx(3600)
    assert bits(dpdist.load(model_path)) == bits(model)
    assert is_finished(model_path)


def test_an_extension_in_order_is_partial_fit(tmp_path: Path) -> None:
    x, new = grid(6), grid(7, 1000)
    model = sva(parallel=False, shuffle=False).fit(x)
    model.save(tmp_path / "model.zarr")
    extended = dpdist.extend(tmp_path / "model.zarr", source_of(new, 250))
    going = model.partial_fit(new)
    assert_close(extended._fitted.total.table, going._fitted.total.table)
    np.testing.assert_array_equal(extended.component_ids_[:9], going.component_ids_[:9])


def test_rows_come_to_as_many_clusters_however_they_are_given() -> None:
    """Clusters that were opened since clusters were last compared are not among those that are shown."""
    rows = np.random.default_rng(0).permutation(clusters(1, 600, 2, 3, 10.0))
    model = dpdist.SVA(random_state=0)
    given = (
        clone(model).fit(rows),
        clone(model).partial_fit(rows),
        clone(model).fit(iter(np.array_split(rows, 10))),
        clone(model).fit(rows[:300]).partial_fit(rows[300:]),
    )
    assert [each.n_components_ for each in given] == [3] * 4


@pytest.mark.parametrize("parallel", [False, True])
def test_a_cluster_that_comes_late_is_not_rare_for_all_the_rows_before_it(parallel: bool) -> None:
    """Of the last of 28 partitions, 28 rounds or 8, in which it is a twenty-fifth; of all rows, less than 0.2 %."""
    x = np.random.default_rng(0).normal(size=(28 * 500, 2))
    x[-250:-230] += 40.0
    model = sva(parallel=parallel, shuffle=False, round_partitions=4, prune=0.01)
    assert sorted(clone(model).fit(source_of(x, 500)).weights_ * len(x)) == pytest.approx([20, len(x) - 20], rel=0.01)
    assert model.fit(source_of(x[:-500], 500)).n_components_ == 1
    assert model.partial_fit(x[-500:]).n_components_ == 2


def test_an_extension_elsewhere_leaves_the_model_as_it_was(tmp_path: Path, model_path: Path) -> None:
    before, new = bits(dpdist.load(model_path)), grid(8, 600)
    elsewhere = dpdist.extend(model_path, new, out=tmp_path / "out.zarr")
    assert bits(dpdist.load(model_path)) == before
    assert bits(dpdist.load(tmp_path / "out.zarr")) == bits(elsewhere) == bits(dpdist.extend(model_path, new))


def test_rows_count_once_unless_one_insists(tmp_path: Path) -> None:
    first, second, kept = grid(1, 300), grid(2, 300), [tmp_path / "pass", tmp_path / "other", tmp_path / "fit"]
    for _ in sva().iter_fit(first, checkpoint_path=kept[0]):
        pass
    for _ in mixture(max_laps=2).iter_fit(first, checkpoint_path=kept[2]):
        pass
    dpdist.extend(kept[0], second, out=kept[1])
    dpdist.extend(kept[0], second)
    for path, rows in [(kept[0], second), (kept[0], first), (kept[1], first), (kept[1], second), (kept[2], first)]:
        for out in (None, tmp_path / "refused") if path != kept[2] else (tmp_path / "refused",):
            with pytest.raises(dpdist.InputError, match=r"would count twice.* again=True"):
                dpdist.extend(path, rows, out=out)
    assert not (tmp_path / "refused").exists() and dpdist.load(kept[0]).rows_seen_ == 600
    assert dpdist.extend(kept[0], second, again=True).rows_seen_ == 900
    assert dpdist.extend(kept[2], second, out=tmp_path / "grown").rows_seen_ == 600


def test_an_extension_of_a_fitted_mixture_needs_a_place_and_keeps_its_ids(tmp_path: Path) -> None:
    rows = clusters(1)
    fitted = mixture(max_laps=40).fit(rows)
    fitted.save(tmp_path / "fit.zarr")
    with pytest.raises(dpdist.InputError, match="store the result with out=PATH"):
        dpdist.extend(tmp_path / "fit.zarr", rows)
    new = np.concatenate([rows, rows[:300] + 90.0])
    model = dpdist.extend(tmp_path / "fit.zarr", new, out=tmp_path / "out.zarr")
    assert list(model.component_ids_[:5]) == list(fitted.component_ids_)
    assert min(model.component_ids_[5:]) > fitted.component_ids_.max()
    assert model.rows_seen_ == 2 * len(rows) + 300
    np.testing.assert_allclose(model._fitted.total.weights[:5], 2 * fitted.weights_ * (10 + len(rows)), rtol=0.05)
    assert dpdist.load(tmp_path / "fit.zarr").elbo_ == fitted.elbo_
    assert bits(dpdist.load(tmp_path / "out.zarr")) == bits(model)


def test_an_extension_broken_off_leaves_the_model_readable_and_resumes(model_path: Path) -> None:
    before, new = (
        dpdist.load(model_path),
        source_of(np.concatenate([grid(7, 900, 12.0), grid(7, 900, 12.0) + 36.0]), 100),
    )
    whole = dpdist.extend(model_path, new, out=model_path.with_name("whole.zarr"))
    fit = dpdist.runs.extending.prepare_extension(model_path, new, SerialBackend(), None, False, {})
    generations = sorted(entry.name for entry in (model_path / "generations").iterdir() if entry.is_dir())
    assert len(generations) == 2
    assert bits(dpdist.load(model_path))[:3] == bits(before)[:3]
    fit.checkpoint_seconds = 0.0
    for step in fit:
        if step.state.visited == 3:
            break
    part = dpdist.load(model_path)
    assert before.rows_seen_ < part.rows_seen_ < whole.rows_seen_
    with pytest.raises(dpdist.InputError, match=r"has not finished\. Finish it with: dpdist resume"):
        dpdist.extend(model_path, new)
    with pytest.raises(dpdist.CheckpointError, match="the data changed"):
        dpdist.resume(model_path, grid(6))
    assert bits(dpdist.resume(model_path, new)) == bits(whole)


@pytest.mark.parametrize("visited", [1, 12])
def test_an_extension_that_cannot_finish_is_given_up_for_the_model_before(model_path: Path, visited: int) -> None:
    """However many checkpoints it wrote; the rows of it do not count as taken, and nothing of it is left."""
    before, bad, good = bits(dpdist.load(model_path)), grid(7, 1600), grid(7, 600) + 36.0
    copy = shutil.copytree(model_path, model_path.with_name("copy.zarr"))
    fit = dpdist.runs.extending.prepare_extension(model_path, source_of(bad, 100), SerialBackend(), None, False, {})
    fit.checkpoint_seconds = 0.0
    for step in fit:
        if step.state.visited + step.state.lap >= visited:
            break
    assert bits(dpdist.load(model_path)) != before
    with pytest.raises(dpdist.InputError, match=r"resume .*, or discard its last rows with give_up=True"):
        dpdist.extend(model_path, good)
    aside = dpdist.extend(model_path, good, out=model_path.with_name("out.zarr"), give_up=True)
    whole = dpdist.extend(model_path, good, give_up=True)
    assert bits(whole) == bits(aside) == bits(dpdist.extend(copy, good)) == bits(dpdist.load(model_path))
    dpdist.extend(model_path, source_of(bad, 100))
    with pytest.raises(dpdist.InputError, match="already includes the rows of"):
        dpdist.extend(model_path, good)
    assert len(list((model_path / "commits").iterdir())) == 2


def test_rows_that_no_number_can_tell_leave_the_model_that_was_extended(model_path: Path) -> None:
    before, far = bits(dpdist.load(model_path))[:3], np.full((40, 2), 1e150)
    with pytest.raises(dpdist.DpdistError):
        dpdist.extend(model_path, far)
    assert bits(dpdist.load(model_path))[:3] == before
    assert is_finished(model_path) or dpdist.extend(model_path, grid(7, 600), give_up=True).rows_seen_ == 2400
    assert is_finished(model_path)


def test_nothing_is_given_up_where_nothing_was_begun(model_path: Path) -> None:
    copy = shutil.copytree(model_path, model_path.with_name("copy.zarr"))
    assert bits(dpdist.extend(model_path, grid(7, 600), give_up=True)) == bits(dpdist.extend(copy, grid(7, 600)))


def test_every_partition_passes_its_rows_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: dict[int, list[int]] = {}
    real = dpdist.inference.sva.sequence._blocks

    def seen(rows: Any, weights: Any, preparation: Any, order: Any) -> Any:
        orders[len(orders)] = order.tolist()
        return real(rows, weights, preparation, order)

    monkeypatch.setattr(dpdist.inference.sva.sequence, "_blocks", seen)
    sva(shuffle=True, prune=0.0).fit(source_of(grid(6, 400), 100))
    assert len(orders) == 4 and len({tuple(order) for order in orders.values()}) == 4
    assert all(sorted(order) == list(range(100)) for order in orders.values())


def test_a_failed_write_leaves_the_model_that_was_extended(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bits(dpdist.load(model_path))

    def full(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(dpdist.storage.checkpoint, "_write_components", full)
    with pytest.raises(dpdist.CheckpointError, match="No space left"):
        dpdist.extend(model_path, grid(7, 600))
    monkeypatch.undo()
    assert bits(dpdist.load(model_path)) == before and is_finished(model_path)
    assert dpdist.extend(model_path, grid(7, 600)).rows_seen_ == 2400


REFUSED = {
    "width": lambda: np.ones((5, 3)),
    "NaN": lambda: np.full((5, 2), np.nan),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("made_by", ["sva", "fit"])
def test_a_refused_extension_writes_nothing(tmp_path: Path, made_by: str, name: str) -> None:
    model: Any = sva() if made_by == "sva" else mixture(max_laps=3)
    model.fit(grid(6)).save(tmp_path / "model.zarr")
    with pytest.raises(dpdist.InputError, match=r"rows should have 2 columns|NaN or infinity"):
        dpdist.extend(tmp_path / "model.zarr", REFUSED[name](), out=tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()
    if made_by == "sva":
        with pytest.raises(dpdist.InputError):
            dpdist.extend(tmp_path / "model.zarr", REFUSED[name]())
        assert is_finished(tmp_path / "model.zarr")


def test_a_refused_extension_spares_what_it_would_have_replaced(tmp_path: Path, model_path: Path) -> None:
    other = sva().fit(grid(9))
    other.save(tmp_path / "out.zarr")
    with pytest.raises(dpdist.InputError, match="rows should have 2 columns"):
        dpdist.extend(model_path, np.ones((5, 3)), out=tmp_path / "out.zarr", overwrite=True)
    assert bits(dpdist.load(tmp_path / "out.zarr")) == bits(other)


def test_an_extension_onto_its_own_model_does_not_lose_it(model_path: Path) -> None:
    before = dpdist.load(model_path)
    with pytest.raises(dpdist.InputError, match="while it is being read"):
        dpdist.extend(model_path, grid(7, 600), out=model_path, overwrite=True)
    assert bits(dpdist.load(model_path)) == bits(before)


# predictive


def tails(steps: int = 10_001) -> tuple[np.ndarray, np.ndarray]:
    """Places far out on both sides, and the density of the places."""
    u = np.linspace(-25.0, 25.0, steps)
    return np.sinh(u), np.cosh(u) * (u[1] - u[0])


@pytest.mark.parametrize(
    "family",
    [SPHERES, IsotropicGaussian(), DiagonalGaussian(shape=3.0), Gaussian(degrees_of_freedom=4.0)],
    ids=["known", "isotropic", "diagonal", "full"],
)
@pytest.mark.parametrize("concentration", [0.5, 300.0])
def test_the_predictive_integrates_to_one_with_the_new_component(family: Any, concentration: float) -> None:
    x = grid(0, 600)[:, :1]
    model = sva(family, concentration=concentration, max_components=30).fit(x)
    places, step = tails()
    assert np.exp(model.score_samples(places[:, None])) @ step == pytest.approx(1.0, abs=1e-5)


def test_the_predictive_of_counts_sums_to_one() -> None:
    rng = np.random.default_rng(0)
    rates = np.array([[0.2, 5.0, 1.0], [4.0, 0.3, 2.0]])[rng.integers(2, size=600)]
    counts = rng.poisson(rates).astype(float)
    poisson = sva(Poisson(), concentration=50.0, max_components=20).fit(counts[:, :1])
    assert np.exp(poisson.score_samples(np.arange(1000.0)[:, None])).sum() == pytest.approx(1.0, abs=1e-6)
    coins = sva(Bernoulli(), concentration=50.0).fit(np.minimum(counts, 1.0))
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    assert np.exp(coins.score_samples(outcomes)).sum() == pytest.approx(1.0)
    urns = sva(Multinomial(), concentration=50.0).fit(counts)
    draws = np.array([c for c in itertools.product(range(7), repeat=3) if sum(c) == 6], dtype=float)
    assert np.exp(urns.score_samples(draws)).sum() == pytest.approx(1.0)


def test_the_predictive_of_two_proportions_integrates_to_one() -> None:
    model = sva(Dirichlet(15.0, delta=1e-9), concentration=20.0).fit(proportions(400, 2, seed=5))
    first = (np.arange(20_000) + 0.5) / 20_000
    density = np.exp(model.score_samples(np.stack([first, 1 - first], axis=1)))
    assert trapezoid(density, first) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kind", ["spheres", "transformed", "counts", "proportions"])
def test_held_out_rows_are_scored_after_every_round(tmp_path: Path, kind: str) -> None:
    make, draw = LEARNERS[kind]
    x = draw()
    rows, held = x[:-200], x[-200:]
    path = stored(tmp_path, held, "held.zarr", chunk=64)
    model, scores = make(), []
    for _, info in model.iter_fit(source_of(rows, 50), holdout=held):
        scores.append(info.score)
        assert info.score == pytest.approx(model.score(held), rel=1e-12)
    np.testing.assert_array_equal(model.history_["holdout_score"].values, scores)
    assert model.history_["holdout_score"].attrs["units"] == "nat"
    for other in (path, da.from_array(held, chunks=(70, -1))):
        again = make().fit(source_of(rows, 50), holdout=other)
        np.testing.assert_allclose(again.history_["holdout_score"].values, scores, rtol=1e-12)
        assert bits(again) == bits(model)
    assert np.isnan(make().fit(source_of(rows, 50)).history_["holdout_score"].values).all()


@EVERY_LEARNER
def test_labels_are_the_largest_responsibilities(name: str) -> None:
    make, draw = LEARNERS[name]
    x = draw()
    model = make().fit(x)
    shares = model.predict_proba(x)
    assert shares.shape == (len(x), model.n_components_)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict(x), shares.argmax(axis=1))
    places, top = model.predict_top(x, 2)
    np.testing.assert_array_equal(places[:, 0], shares.argmax(axis=1))
    np.testing.assert_allclose(top[:, 0], shares.max(axis=1))
    np.testing.assert_array_equal(make().fit_predict(x), model.predict(x))


@EVERY_LEARNER
def test_samples_have_rows_and_components(name: str) -> None:
    make, draw = LEARNERS[name]
    x = draw()
    model = make().set_params(concentration=len(x) / 4, max_components=12).fit(x)
    drawn, components = model.sample(300)
    width = x.shape[1]
    assert drawn.shape == (300, width) and components.shape == (300,) and np.isfinite(drawn).all()
    fresh = components == model.n_components_
    assert fresh.mean() == pytest.approx(model.rest_weight_, abs=0.07)
    assert components.max() <= model.n_components_ and components.min() >= 0
    assert model.sample()[0].shape == (1, width)


def test_samples_lie_where_the_rows_do() -> None:
    x = grid(0) + 500.0
    model = sva(concentration=0.01).fit(x)
    drawn, components = model.sample(3000)
    np.testing.assert_allclose(drawn.mean(axis=0), x.mean(axis=0), atol=0.4)
    means = model.components_["mean"].values
    old = components < model.n_components_
    assert np.abs(drawn[old] - means[components[old]]).max() < 6.0


# coordinates


@pytest.mark.parametrize("case", [case for case in FAMILIES if case.make().has_location], ids=lambda case: case.name)
def test_moving_all_rows_moves_the_means_and_nothing_else(case: FamilyCase) -> None:
    x = grouped(case, 900)
    make = case.make(variance=1.0) if case.name == "isotropic_gaussian" else case.make()
    here, there = sva(make).fit(x), sva(make).fit(x + 100.0)
    assert here.n_components_ == there.n_components_
    for name, values in here.components_.data_vars.items():
        moved = 100.0 if name == "mean" else 0.0
        np.testing.assert_allclose(there.components_[name].values - moved, values.values, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(there.score_samples(x + 100.0), here.score_samples(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "plan",
    [
        dpdist.TransformPlan(center=True),
        dpdist.TransformPlan(scale=True),
        dpdist.TransformPlan(pca=2),
        dpdist.TransformPlan(scale=True, pca=3),
    ],
    ids=["center", "scale", "pca", "scale and pca"],
)
def test_a_transform_is_kept_with_the_model(tmp_path: Path, plan: dpdist.TransformPlan) -> None:
    rng = np.random.default_rng(0)
    x = clusters(7) @ rng.normal(size=(3, 6)) + 0.01 * rng.normal(size=(900, 6)) + 50.0
    model = sva(Gaussian(), row_transform=plan).fit(x)
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    preparation = again._problem.preparation
    by_hand = preparation.transform.apply(x)
    volume = preparation.transform.log_volume
    by_hand_scores = again._predictor.density()(by_hand - preparation.origin) + volume
    # Spreads of 0.01 beside means of 50: products of rows of other groups round by some 1e-10 nats.
    np.testing.assert_allclose(by_hand_scores, model.score_samples(x), rtol=1e-12, atol=1e-9)
    assert again.components_["mean"].shape[1] == preparation.columns == 6
    plain = sva(Gaussian()).fit(by_hand)
    np.testing.assert_allclose(plain.score_samples(by_hand) + volume, model.score_samples(x), rtol=1e-6, atol=1e-6)


# clusters


@pytest.mark.parametrize("parallel", [True, False], ids=["side by side", "one by one"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_well_separated_clusters_are_found(seed: int, parallel: bool) -> None:
    x = grid(seed, 2700)
    model = SVA(SPHERES, parallel=parallel, random_state=seed).fit(x)
    assert model.n_components_ == 9
    nearest = np.rint(model.components_["mean"].values / 6.0)
    assert len(np.unique(nearest, axis=0)) == 9
    np.testing.assert_allclose(model.components_["mean"].values, 6.0 * nearest, atol=0.35)
    np.testing.assert_array_equal(np.unique(model.predict(x)), np.arange(9))
    plain = sva(parallel=parallel, random_state=seed, merge=None, prune=0.0).fit(x[:900])
    assert plain.n_components_ == plain._fitted.total.next_id and plain.pruned_weight_ == 0.0


def test_pruning_says_what_it_removed_and_a_bound_is_kept() -> None:
    x = np.concatenate([grid(0), np.full((3, 2), 80.0)])
    model = sva(prune=0.01).fit(x)
    assert model.n_components_ == 9 and model.pruned_weight_ >= 3.0
    assert model.pruned_weight_ + model._fitted.total.weights.sum() == pytest.approx(len(x))
    assert sva(prune=0.001).fit(x).n_components_ == 10
    assert sva(max_components=4).fit(source_of(grid(0), 200)).n_components_ == 4


@pytest.mark.parametrize("most", [1, 5, 8])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_bound_holds_where_each_partition_opens_a_few(most: int, parallel: bool) -> None:
    x = grid(0)
    x = x[np.lexsort(np.rint(x / 6.0).T)]  # each partition has clusters of its own
    model = sva(max_components=most, shuffle=False, parallel=parallel, prune=0.0).fit(source_of(x, len(x) // 18))
    assert 1 <= model.n_components_ <= most
    assert model._fitted.total.weights.sum() == pytest.approx(len(x))


def test_attributes_and_infos_after_a_fit() -> None:
    x, model, infos = grid(0), sva(), []
    for state, info in model.iter_fit(source_of(x, 200)):
        infos.append(info)
        assert info.n_components == model.n_components_ == len(state.running.table)
    assert [info.lap for info in infos] == [1, 2, 3, 4, 5] and {info.of for info in infos} == {5}
    assert [info.rows for info in infos] == [200, 400, 800, 1600, 1800]
    history = model.history_
    np.testing.assert_array_equal(history["n_components"].values, [info.n_components for info in infos])
    assert (history["seconds"].values > 0).all()
    assert len(model.weights_) == len(model.component_ids_) == 9
    assert list(model.components_["component"].values) == list(model.component_ids_)
    assert set(model.components_.data_vars) >= {"mean", "weight"}


# bad input


BAD = [
    ({"concentration": -1.0}, "concentration should be finite and above zero"),
    ({"merge": ["evidence"]}, "merge should be one of"),
    ({"merge": "evidence", "merge_threshold": 0.0}, "merge_threshold should be finite and above zero"),
    ({"family": mixture()}, "family should be a family"),
    ({"row_transform": dpdist.TransformPlan(pca=7)}, "pca should be from 1"),
]


@pytest.mark.parametrize(("parameters", "sentence"), BAD, ids=[f"{wrong}"[:40] for wrong, _ in BAD])
def test_bad_parameters_get_a_sentence(parameters: dict[str, Any], sentence: str) -> None:
    for stream in (False, True):
        with pytest.raises(dpdist.InputError, match=sentence):
            sva(**parameters).fit(iter([grid(0, 300)]) if stream else grid(0, 300))


def test_a_likelihood_without_a_conjugate_prior_is_refused_where_it_does_not_serve() -> None:
    x = proportions(60, 3, seed=0)
    for wrong, rows, sentence in [
        ({"merge": "evidence"}, x, "merge='evidence' needs a conjugate prior, which Dirichlet does not have"),
        ({"merge": EvidenceTest()}, x, "merge='evidence' needs a conjugate prior, which Dirichlet does not have"),
        ({"forgetting": 0.5}, x, "forgetting should be finite and above 0.5"),
        ({}, 2 * x, "Dirichlet needs rows of two or more proportions that sum to 1"),
        ({}, np.vstack([2 * x[:1], 0 * x[:1], x]), "Dirichlet needs .*proportions"),
        ({}, -x, "Dirichlet needs"),
        ({}, sparse.csr_array(x), "Dirichlet needs dense rows"),
    ]:
        with pytest.raises(dpdist.InputError, match=sentence):
            sva(Dirichlet(), **wrong).fit(rows)
    with pytest.raises(dpdist.InputError, match=r"only dpdist\.SVA accepts other likelihoods"):
        mixture(family=Dirichlet()).fit(x)


DATA = [
    (SPHERES, lambda x: np.where(x > 6, np.nan, x), "NaN or infinity in .* of 300 rows"),
    (SPHERES, lambda x: x[:, 0], "Expected 2D array"),
    (SPHERES, lambda x: x[:0], "0 sample"),
    (SPHERES, lambda x: x.astype(str), "real numbers"),
    (SPHERES, lambda x: sparse.csr_array(x), "does not accept sparse input"),
    (SPHERES, lambda x: [x, x], "Expected 2D array"),
    (Poisson(), lambda x: -np.abs(x), "counts from 0 to"),
    (Bernoulli(), lambda x: x, "0 or 1"),
]


@pytest.mark.parametrize(("family", "spoil", "sentence"), DATA, ids=[sentence[:20] for _, _, sentence in DATA])
def test_bad_rows_get_a_sentence(tmp_path: Path, family: Any, spoil: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(dpdist.InputError, match=sentence):
        passed(sva(family), spoil(grid(0, 300)), checkpoint_path=tmp_path / "run.zarr")
    assert not (tmp_path / "run.zarr").exists()
    with pytest.raises(dpdist.InputError, match=sentence.replace("of 300 rows", "rows")):
        sva(family).partial_fit(spoil(grid(0, 300)))


HELD = [
    (lambda x: x[:, :1], "rows should have 2 columns.*the held-out score"),
    (lambda x: x[:, 0], "Expected 2D array"),
    (lambda x: x[:0], "0 sample"),
    (lambda x: np.where(x > 6, np.nan, x), "NaN or infinity"),
    (lambda x: sparse.csr_array(x), "sparse"),
    (lambda x: "nothing.zarr", "there is no Zarr array and no corpus at"),
]


@pytest.mark.parametrize(("spoil", "sentence"), HELD, ids=[sentence[:20] for _, sentence in HELD])
def test_bad_held_out_rows_get_a_sentence(tmp_path: Path, spoil: Callable[..., Any], sentence: str) -> None:
    x = grid(0, 300)
    with pytest.raises(dpdist.InputError, match=sentence):
        passed(sva(), x, holdout=spoil(x), checkpoint_path=tmp_path / "run.zarr")
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize(
    "weights",
    [np.ones(3), -np.ones(300), np.zeros(300), np.full(300, np.nan)],
    ids=["short", "<0", "0", "nan"],
)
def test_bad_weights_get_a_sentence(weights: np.ndarray) -> None:
    for fit in (sva().fit, sva().partial_fit):
        with pytest.raises(dpdist.InputError, match="sample_weight should"):
            fit(grid(0, 300), sample_weight=weights)


def test_a_loaded_model_refuses_rows_of_another_width(model_path: Path) -> None:
    model = dpdist.load(model_path)
    for method in (model.predict, model.score_samples, model.partial_fit):
        with pytest.raises(dpdist.InputError, match="rows should have 2 columns"):
            method(np.ones((4, 3)))


class Never(MergeTest):
    """A test of one's own."""

    def pairs(self, *_arguments: Any) -> np.ndarray:
        return np.zeros((0, 2), dtype=np.intp)


def test_merge_tests_are_kept_with_the_model_or_refused_by_name(tmp_path: Path) -> None:
    x = grid(0, 300)
    sva(merge=DistanceTest(0.3, relative=False)).fit(x).save(tmp_path / "known.zarr")
    assert dpdist.load(tmp_path / "known.zarr").merge == DistanceTest(0.3, relative=False)
    model = sva(merge=Never()).fit(x)
    with pytest.raises(dpdist.DpdistError, match="Never"):
        model.save(tmp_path / "own.zarr")


# scikit-learn


def test_a_clone_has_the_parameters_and_fits_alike() -> None:
    x = grid(0, 600)
    model = sva(Gaussian(mean_precision=0.01), concentration=3.0, row_transform=dpdist.TransformPlan())
    assert clone(SVA()).get_params() == SVA().get_params()
    again = clone(model)
    assert again.get_params()["concentration"] == 3.0 and not hasattr(again, "weights_")
    assert bits(again.fit(x)) == bits(model.fit(x))
    assert model.set_params(threshold=0.5, merge=None) is model and model.get_params()["threshold"] == 0.5


# wherever it runs; last, for an open client is where passes run from here on


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskBackend]:
    """A local cluster."""
    backend = local_backend(1, memory_limit="1GB")
    yield backend
    backend.close()


@pytest.fixture(scope="module", params=[1, 2])
def dask_backend(cluster: DaskBackend, request: pytest.FixtureRequest) -> DaskBackend:
    """One or two worker processes."""
    cluster.client.cluster.scale(request.param)
    cluster.client.wait_for_workers(request.param)
    return cluster


@pytest.mark.parametrize("kind", ["side by side", "one by one", "by distance"])
def test_dask_gives_the_bits_of_serial(dask_backend: DaskBackend, rows_path: str, kind: str) -> None:
    serial = passed(PASSES[kind](), rows_path, backend=SerialBackend())
    assert bits(passed(PASSES[kind](), rows_path, backend=dask_backend)) == bits(serial)


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_rows_in_memory_pass_on_an_active_client_to_the_same_bits(dask_backend: DaskBackend) -> None:
    documents, counts = proportions(900, 4, seed=1), grouped(FAMILIES[4], 900)
    for family, x in ((Dirichlet(30.0), documents), (Multinomial(), sparse.csr_array(counts)), (Gaussian(), counts)):
        serial = passed(sva(family), x, backend=SerialBackend())
        with dask_backend.client.as_current():
            distributed = sva(family).fit(x)
            scores = distributed.score_samples(x)
        assert bits(distributed) == bits(serial)
        np.testing.assert_array_equal(serial.score_samples(x), scores)


@pytest.mark.parametrize("dask_backend", [2], indirect=True)
def test_dask_extends_to_the_bits_of_serial(tmp_path: Path, model_path: Path, dask_backend: DaskBackend) -> None:
    serial = dpdist.extend(model_path, grid(8, 900), out=tmp_path / "serial.zarr", backend=SerialBackend())
    assert bits(dpdist.extend(model_path, grid(8, 900), backend=dask_backend)) == bits(serial)
