"""Laws of trees of clusters: exact levels, merges best first, SciPy's format, cuts that add up probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import sparse
from scipy.cluster import hierarchy

import dpdist
from dpdist.cli.root import app
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.hierarchy import growing
from dpdist.inference.hierarchy.cut import Cut, cut
from dpdist.inference.hierarchy.growing import grow_tree
from dpdist.inference.hierarchy.shares import FLOOR, Shares, draw_shares
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.prediction import SVAPredictor
from dpdist.inference.transform import Preparation, Transform
from dpdist.models.allocations import LearnedDirichletProcess
from dpdist.models.families import Gaussian
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from dpdist.report.dendrogram import draw_dendrogram
from dpdist.runs.opening import grow_stored_tree
from dpdist.storage.checkpoint import RunStore
from tests.cases import ALLOCATIONS, FAMILIES, entropy_of, filled
from tests.runs import clusters, digest, mixture, source_of

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
every_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: each.name)


class Grown:
    """A tree of a random model over rows with weights, cut in partitions, and its responsibilities by brute force."""

    def __init__(self, case, allocation, seed: int, k: int = 5, n: int = 40) -> None:
        rng = np.random.default_rng(seed)
        self.rows, self.weights = case.rows(rng, n, 3), rng.integers(0, 3, size=n) + rng.random(n)
        family = filled(case, self.rows)
        resp = rng.dirichlet(np.full(k, 0.3), size=n)
        total = Summary((self.weights[:, None] * resp).T @ family.features(self.rows), np.zeros(k))
        self.model = Model(family, allocation)
        self.predictor = MixturePredictor(self.model, Preparation(Transform(), None, 3), total, rng.permutation(50)[:k])
        given = sparse.csr_array(self.rows) if case.sparse and seed % 2 else self.rows
        self.source = ArraySource(given, self.weights, partition_rows=13)
        self.tree = grow_tree(self.predictor, self.source, SerialBackend(), seed)
        shares = self.predictor.probabilities(ArraySource(self.rows, partition_rows=n).partitions[0])
        shares[shares < FLOOR] = 0.0
        self.resp = shares / shares.sum(axis=1, keepdims=True)

    def elbo(self, groups: np.ndarray) -> float:
        """The bound of rows whose responsibilities are added up in groups (K,), from the rows themselves."""
        family, allocation = self.model.family, self.model.allocation
        resp = self.resp @ np.eye(groups.max() + 1)[groups]
        stats = (self.weights[:, None] * resp).T @ family.features(self.rows)
        order = np.argsort(-stats[:, -1]) if allocation.ordered else np.arange(len(stats))
        base = float(self.weights @ family.log_base_measure(self.rows))
        return self.model.elbo(Summary(stats[order], entropy_of(resp, self.weights)[order], base))

    def levels(self) -> list[np.ndarray]:
        """The groups of each level, from all components to one."""
        return [self.tree.groups(len(self.tree) - level) for level in range(len(self.tree))]


@every_family
@every_allocation
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_elbo_of_every_level_is_that_of_its_own_responsibilities(case, allocation, seed) -> None:
    grown = Grown(case, allocation, seed)
    expected = [grown.elbo(groups) for groups in grown.levels()]
    assert [groups.max() + 1 for groups in grown.levels()] == [5, 4, 3, 2, 1]
    np.testing.assert_allclose(grown.tree.elbo, expected, rtol=1e-12, atol=1e-8)
    sizes = [(grown.weights @ grown.resp)[groups == g].sum() for groups in grown.levels() for g in {*groups}]
    np.testing.assert_allclose(np.unique(np.round(grown.tree.counts, 8)), np.unique(np.round(sizes, 8)), rtol=1e-7)


@every_family
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_merges_are_best_first_and_evidence_is_what_the_nearest_costs(case, seed) -> None:
    """All rows are drawn, and no allocation here learns anything; statistics of the model are those of its rows."""
    grown = Grown(case, ALLOCATIONS[0], seed)
    found = grown.predictor.probabilities(ArraySource(grown.rows, partition_rows=99).partitions[0])
    stats = (grown.weights[:, None] * found).T @ grown.model.family.features(grown.rows)
    shares = growing.Shares(sparse.csr_array(grown.resp), grown.weights)
    merges, nearest = growing.order_of_merges(grown.model, stats, shares, 1.0)
    blank = np.zeros(9)
    tree = Tree(np.arange(5), merges, blank[:5], blank, np.eye(5), nearest, blank[:5])
    for level in range(5, 1, -1):
        before = tree.groups(level)
        gains = {}
        for a in range(level):
            for b in range(a):
                gains[a, b] = grown.elbo(np.unique(np.where(before == a, b, before), return_inverse=True)[1])
        assert grown.elbo(tree.groups(level - 1)) >= max(gains.values()) - 1e-6
        if level == 5:
            best = [max(value for pair, value in gains.items() if k in pair) for k in range(5)]
    first = [grown.elbo(np.unique(np.where(np.arange(5) == k, n, np.arange(5)), return_inverse=True)[1])
             for k, n in enumerate(nearest)]  # fmt: skip
    np.testing.assert_allclose(first, best, atol=1e-6)
    given_up = [
        grown.tree.elbo[0] - grown.elbo(np.unique(np.where(np.arange(5) == k, n, np.arange(5)), return_inverse=True)[1])
        for k, n in enumerate(grown.tree.nearest)
    ]
    np.testing.assert_allclose(grown.tree.evidence, given_up, rtol=1e-9, atol=1e-8)


def test_separation_is_one_less_the_share_another_would_take() -> None:
    grown = Grown(FAMILIES[0], ALLOCATIONS[0], 3)
    both = (grown.weights[:, None] * grown.resp).T @ grown.resp
    np.testing.assert_allclose(grown.tree.overlap, both, atol=1e-12)
    taken = both / (grown.weights @ grown.resp)[:, None]
    np.testing.assert_allclose(grown.tree.separation, 1 - (taken - np.diag(np.diag(taken))).max(axis=1), rtol=1e-9)


@given(seed=st.integers(0, 2**32 - 1))
def test_heights_never_fall_and_scipy_cuts_alike(seed) -> None:
    """Also where merges gain: the cut is the fewest clusters that give up no more."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 9))
    alive, merges = list(range(k)), []
    for node in range(k, 2 * k - 1):
        pair = rng.choice(len(alive), size=2, replace=False)
        merges.append([alive[p] for p in pair])
        alive = [each for each in alive if each not in merges[-1]] + [node]
    elbo, blank = rng.normal(size=k), np.ones(2 * k - 1)
    tree = Tree(np.arange(k), np.array(merges), elbo, blank, np.eye(k), np.zeros(k, int), blank[:k])
    assert hierarchy.is_valid_linkage(tree.linkage, throw=True) and (np.diff(tree.heights) >= 0).all()
    assert repr(tree) == f"Tree(components={k}, elbo={elbo[0]:.6g}, elbo_as_one={elbo[-1]:.6g})"
    for loss in (0.0, *np.abs(rng.normal(size=4))):
        level = tree.level(elbo_loss=loss)
        assert level == min(k - place for place in range(k) if elbo.max() - elbo[place] <= loss)
        ours, theirs = tree.groups(level), hierarchy.fcluster(tree.linkage, loss, "distance")
        assert len({*zip(ours, theirs, strict=True)}) == len({*ours}) == len({*theirs})
    places = [int(np.flatnonzero(ours == group)[0]) for group in range(level)]
    assert places == sorted(places)


def test_one_component_is_a_tree_of_its_own() -> None:
    grown = Grown(FAMILIES[0], ALLOCATIONS[0], 0, k=1)
    assert grown.tree.linkage.shape == (0, 4) and grown.tree.elbo.shape == (1,) and np.isinf(grown.tree.evidence).all()


def halves(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, dpdist.DPMixture]:
    """Rows of 20 Gaussians, which are whose, and a model in which each of them is cut in two."""
    rng = np.random.default_rng(0)
    means = 8 * rng.normal(size=(20, columns))
    owners = rng.integers(20, size=rows)
    x = means[owners] + rng.normal(size=(rows, columns))
    cut_in_two = 2 * owners + (x[:, 0] > means[owners, 0])
    return x, owners, mixture(family=Gaussian(), initial=cut_in_two, moves=[], max_laps=1)


def test_twenty_gaussians_cut_in_two_come_back() -> None:
    x, owners, model = halves(6000, 8)
    model.fit(x)
    tree = model.tree()
    np.testing.assert_allclose(tree.overlap.sum(axis=1), tree.counts[:40], rtol=1e-12)
    assert len(tree) == 40
    found = model.cut(20)
    labels = found.predict(x)
    assert len({*zip(labels, owners, strict=True)}) == 20
    assert found.elbo_ == tree.elbo[20] > model.elbo_ and model.cut(elbo_loss=0).n_components_ == 20
    np.testing.assert_array_equal(found.groups_[model.predict(x)], labels)
    np.testing.assert_array_equal(found.labels_, labels)
    assert len({*model.labels_}) == 40 and found.bic(x) == model.bic(x)


def test_a_tree_reads_no_partition_more_than_twice(monkeypatch) -> None:
    x, _, model = halves(600, 2)
    model.fit(x)
    source, read = ArraySource(x, partition_rows=50), []
    load = type(source.partitions[0]).read
    monkeypatch.setattr(type(source.partitions[0]), "read", lambda part: (read.append(part.index), load(part))[1])
    for drawn in (10**6, 100):
        monkeypatch.setattr(growing, "DRAWN", drawn)
        model.tree(source)
        assert set(read) == set(range(12)) and max(map(read.count, read)) <= 2
        read.clear()


def test_larger_data_are_drawn_from_and_every_level_stays_exact(monkeypatch) -> None:
    x, owners, model = halves(6000, 8)
    model.fit(x)
    whole = model.tree(x)
    monkeypatch.setattr(growing, "DRAWN", 2000)
    drawn = model.tree(x)
    np.testing.assert_allclose(drawn.elbo[[0, -1]], whole.elbo[[0, -1]], rtol=1e-13)
    assert len({*zip(model.cut(20).predict(x), owners, strict=True)}) == 20


def test_a_row_drawn_with_a_chance_of_one_half_counts_as_two() -> None:
    grown = Grown(FAMILIES[0], ALLOCATIONS[0], 3)
    resp, stats = sparse.csr_array(grown.resp), grown.predictor.total.stats
    half = growing._Level.of(grown.model, stats, Shares(resp, grown.weights), 0.5).merged(0, 1, 5)
    all_of_them = growing._Level.of(grown.model, stats, Shares(resp, 2 * grown.weights), 1.0).merged(0, 1, 5)
    np.testing.assert_array_equal(half.fixed, all_of_them.fixed)


def test_rows_are_drawn_with_their_own_weights_and_anew_in_every_partition() -> None:
    grown = Grown(FAMILIES[0], ALLOCATIONS[0], 3)
    weights, drawn = grown.weights + 1, []
    for part in ArraySource(np.tile(grown.rows, (2, 1)), np.tile(weights, 2), partition_rows=40).partitions:
        found = draw_shares(part, (grown.predictor, 0.5, 0))
        away = np.abs(found.resp.toarray()[:, None] - grown.resp).max(axis=2)
        assert 0 < len(away) < 40 and away.min(axis=1).max() < 1e-9
        drawn.append(away.argmin(axis=1))
        np.testing.assert_array_equal(found.weights, weights[drawn[-1]])
    assert {*drawn[0]} != {*drawn[1]}


def test_merges_take_the_learned_concentration_at_its_mean(monkeypatch) -> None:
    grown = Grown(FAMILIES[0], LearnedDirichletProcess(), 3)
    stats, drawn = grown.predictor.total.stats, Shares(sparse.csr_array(grown.resp), grown.weights)
    plain = Model(grown.model.family, grown.model.allocation.plug_in(stats[:, -1]))
    expected = growing.order_of_merges(plain, stats, drawn, 1.0)
    monkeypatch.setattr(LearnedDirichletProcess, "merge_gains", lambda *_: pytest.fail("it learns"))
    for found, other in zip(growing.order_of_merges(grown.model, stats, drawn, 1.0), expected, strict=True):
        np.testing.assert_array_equal(found, other)


@every_family
@pytest.mark.parametrize("sequential", [False, True], ids=["fit", "pass"])
def test_a_cut_adds_up_what_the_model_says(case, sequential) -> None:
    grown = Grown(case, ALLOCATIONS[0], 5)
    whole, rows = grown.predictor, ArraySource(grown.rows, partition_rows=99).partitions[0]
    if sequential:
        learner, total = Conjugate(grown.model.family, 3), whole.total.stats
        whole = SVAPredictor(learner, whole.preparation, 2.0, total, whole.ids)
    groups = np.array([0, 1, 0, 2, 1])
    fewer, members = Cut(whole, groups), np.eye(3)[groups]
    summed = whole.probabilities(rows) @ members
    np.testing.assert_allclose(fewer.probabilities(rows), summed, atol=1e-12)
    np.testing.assert_array_equal(fewer.labels(rows), summed.argmax(axis=1))
    np.testing.assert_array_equal(fewer.log_density(rows), whole.log_density(rows))
    weights, rest = whole.weights()
    np.testing.assert_allclose(fewer.weights()[0], weights @ members)
    assert fewer.weights()[1] == rest
    heaviest = [max(np.flatnonzero(groups == g), key=weights.__getitem__) for g in range(3)]
    np.testing.assert_array_equal(fewer.ids, whole.ids[heaviest])
    for name, (_, values) in fewer.describe().items():
        alone = grown.model.family.describe(members.T @ whole.mixture()[1].stats)[name][1]
        np.testing.assert_array_equal(values, alone)
    drawn = fewer.sample(np.array([0, 1, 2, 3]), np.random.default_rng(0))
    assert drawn.shape == (4, 3)


def test_a_cut_draws_components_as_often_as_its_model_does(monkeypatch) -> None:
    whole, groups = Grown(FAMILIES[0], ALLOCATIONS[0], 5).predictor, np.array([0, 1, 0, 2, 1])
    monkeypatch.setattr(MixturePredictor, "sample", lambda _, components, rng: components)
    fewer, rng = Cut(whole, groups), np.random.default_rng(0)
    drawn = fewer.sample(rng.choice(3, size=20_000, p=fewer.shares()), rng)
    assert np.ptp(whole.shares()) > 0.1
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20_000, whole.shares(), atol=0.015)


def test_no_tree_tells_the_elbo_once_small_clusters_have_joined() -> None:
    grown = Grown(FAMILIES[0], ALLOCATIONS[0], 3)
    assert cut(grown.predictor, grown.tree, 3, min_cluster_size=1e-9).elbo == grown.tree.elbo[2]
    assert np.isnan(cut(grown.predictor, grown.tree, 3, min_cluster_size=1e9).elbo)


def test_small_clusters_join_their_likeliest_neighbour() -> None:
    means = np.array([[0.0, 0], [6, 0], [40, 0], [45, 0]])
    sizes = [400, 10, 300, 20]
    x = np.concatenate([m + np.random.default_rng(0).normal(size=(n, 2)) for m, n in zip(means, sizes, strict=True)])
    owners = np.repeat(np.arange(4), sizes)
    model = mixture(family=Gaussian(), initial=owners, moves=[], max_laps=2).fit(x)
    place = {owner: int(model.predict(x[owners == owner]).max()) for owner in range(4)}
    found = model.cut(min_cluster_size=50)
    groups = [found.groups_[place[owner]] for owner in range(4)]
    assert groups[0] == groups[1] != groups[2] == groups[3] and found.n_components_ == 2
    assert np.isnan(found.elbo_) and model.cut(min_cluster_size=15).n_components_ == 3
    assert model.cut(min_cluster_size=1e6).n_components_ == 1 and model.cut(min_cluster_size=1).elbo_ != model.elbo_


def test_the_tree_is_kept_with_the_model_and_gone_with_another_lap(tmp_path) -> None:
    x = clusters(0)
    model = mixture(max_laps=3)
    for _ in model.iter_fit(x, checkpoint_path=tmp_path / "run.zarr"):
        pass
    with pytest.raises(dpdist.InputError, match=r"this model has no tree. Grow it first: .* model.tree\(x\)"):
        model.cut(2)
    tree = model.tree(x)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.tree_.linkage, tree.linkage)
    np.testing.assert_array_equal(loaded.cut(2).predict_proba(x), model.cut(2).predict_proba(x))
    with pytest.raises(dpdist.InputError, match="save its model with the tree"):
        model.cut(2).save(tmp_path / "cut.zarr")
    for wrong in ({"n_clusters": 0}, {"n_clusters": 99}, {"elbo_loss": -1.0}, {"min_cluster_size": 0}):
        with pytest.raises(dpdist.InputError, match=next(iter(wrong))):
            model.cut(**wrong)
    with pytest.raises(dpdist.InputError, match="got both"):
        model.cut(2, elbo_loss=1.0)
    assert not hasattr(model.fit(x), "tree_")


def test_a_tree_of_weighted_rows_is_of_their_weights_also_where_the_model_was_loaded(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, weights = clusters(0, rows=300), rng.integers(1, 6, 300)
    model = mixture(max_laps=4).fit(x, sample_weight=weights)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    found = loaded.tree(x, sample_weight=weights)
    np.testing.assert_array_equal(found.elbo, model.tree().elbo)
    np.testing.assert_allclose(found.elbo, loaded.tree(np.repeat(x, weights, axis=0)).elbo, rtol=1e-9)
    assert found.elbo[0] == pytest.approx(model.elbo_, rel=1e-3)
    drawn = loaded.stability(x, 2, 2, sample_weight=weights).jaccard
    np.testing.assert_array_equal(drawn, model.stability(refits=2, max_laps=2).jaccard)
    for others in ((x,), (x[:100], weights[:100])):  # not the weights of the fit, or a part of the rows
        given = {} if len(others) == 1 else {"sample_weight": others[1]}
        for ask in (loaded.tree, loaded.stability):
            with pytest.raises(dpdist.InputError, match=f"total weight {weights.sum()}; got a total weight of"):
                ask(others[0], **given)


def test_a_tree_of_a_pass_is_of_weighted_rows_however_they_came(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, weights = clusters(0, rows=300), 0.7 * rng.integers(0, 5, 300)
    model = dpdist.SVA(random_state=0).fit(x, sample_weight=weights)
    expected = model.tree().elbo
    np.testing.assert_array_equal(model.tree(x, sample_weight=weights).elbo, expected)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dpdist.load(tmp_path / "model.zarr").tree(x, sample_weight=weights).elbo, expected)
    with pytest.raises(dpdist.InputError, match="total weight"):
        model.tree(x)
    for part, own in zip(np.array_split(x, 3), np.array_split(weights, 3), strict=True):
        model.partial_fit(part, sample_weight=own)
    twice = {"x": np.concatenate([x, x]), "sample_weight": np.concatenate([weights, weights])}
    assert len(model.tree(**twice).elbo) == model.n_components_
    fitted = mixture(max_laps=3).fit(x)
    fitted.save(tmp_path / "fit.zarr")
    extended = dpdist.extend(tmp_path / "fit.zarr", x + 50.0, sample_weight=weights, out=tmp_path / "out.zarr")
    given = np.concatenate([np.ones(300), weights])
    assert len(extended.tree(np.concatenate([x, x + 50.0]), sample_weight=given).elbo) == extended.n_components_


def test_a_tree_of_an_extended_model_needs_the_old_rows_too(tmp_path) -> None:
    old, new = clusters(0, rows=200), clusters(1, rows=100)
    dpdist.SVA(random_state=0).fit(old).save(tmp_path / "model.zarr")
    model = dpdist.extend(tmp_path / "model.zarr", new)
    for ask in (model.tree, lambda: model.labels_):
        with pytest.raises(AttributeError, match="needs the rows of the fit"):
            ask()
    with pytest.raises(dpdist.InputError, match="total weight 300; got a total weight of 100"):
        model.tree(new)
    assert len(model.tree(np.concatenate([old, new])).elbo) == model.n_components_
    with pytest.raises(dpdist.InputError, match="total weight 300; got a total weight of 100"):
        grow_stored_tree(tmp_path / "model.zarr", source_of(new), SerialBackend())


@pytest.mark.parametrize("command", ["tree", "stability"])
def test_of_a_run_its_own_rows_alone_tell_what_is_kept_with_it(tmp_path, monkeypatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("rows", clusters(0)), ("others", clusters(1))):
        np.save(f"{name}.npy", rows)
    for _ in mixture(max_laps=3).iter_fit("rows.npy", checkpoint_path="run.zarr"):
        pass
    asked = [command, "run.zarr", "--serial", *(["--refits", "2"] if command == "stability" else [])]
    with pytest.raises(dpdist.CheckpointError, match="the data changed since the checkpoint"):
        app([*asked, "--data", "others.npy"], standalone_mode=False)
    (tmp_path / "rows.npy").rename(tmp_path / "moved.npy")
    with pytest.raises(
        dpdist.InputError,
        match=r"there is no .*have moved, give their new path: dpdist resume, tree and stability take --data PATH",
    ):
        app(asked, standalone_mode=False)
    (tmp_path / "moved.npy").rename(tmp_path / "rows.npy")
    assert not any(hasattr(dpdist.load("run.zarr"), name) for name in ("tree_", "stability_"))
    app([*asked, "--data", "rows.npy"], standalone_mode=False)
    assert hasattr(dpdist.load("run.zarr"), f"{command}_")


def test_commands_grow_a_tree_and_cut_it(tmp_path, monkeypatch, capsys) -> None:
    """A run goes on from where it was, and its next lap has no tree."""
    monkeypatch.chdir(tmp_path)
    x = clusters(0)
    zarr.create_array("rows.zarr", shape=x.shape, dtype="float64", chunks=(300, 3))[...] = x
    for _ in mixture(max_laps=3, initial="k-means++", initial_components=6).iter_fit(
        "rows.zarr", checkpoint_path="run.zarr"
    ):
        pass
    before = RunStore.open("run.zarr").state()[0]
    asked = ["predict", "run.zarr", "rows.zarr", "--serial", "--n-clusters", "3"]
    with pytest.raises(dpdist.InputError, match="with: dpdist tree"):
        app(asked, standalone_mode=False)
    app(["tree", "run.zarr", "--serial"], standalone_mode=False)
    assert "nats lost by merging" in capsys.readouterr().out
    app([*asked, "--top", "2"], standalone_mode=False)
    model, labels = dpdist.load("run.zarr"), xr.open_zarr("labels.zarr", consolidated=False)
    np.testing.assert_array_equal(labels["label"].values, model.cut(3).predict(x))
    np.testing.assert_array_equal(labels["id"].values, model.cut(3).component_ids_)
    # The command's partitions are those of the file, and products of other numbers of rows may round differently.
    np.testing.assert_allclose(labels["top_probability"].values, model.cut(3).predict_top(x, 2)[1], rtol=1e-9)
    after = RunStore.open("run.zarr")
    stored = xr.open_zarr("run.zarr", group=f"{after.attributes['generation']}/tree", consolidated=False)
    np.testing.assert_array_equal(stored["elbo"].values, model.tree_.elbo)
    assert digest(after.state()[0]) == digest(before) and len(after.history().laps) == 3
    assert dpdist.resume("run.zarr", "rows.zarr", max_laps=4).n_iter_ == 4
    assert not hasattr(dpdist.load("run.zarr"), "tree_")


def test_a_dendrogram_shows_every_cluster_at_the_heights_of_the_tree() -> None:
    tree = Grown(FAMILIES[0], ALLOCATIONS[0], 3).tree
    axes = Figure().subplots()
    drawn = draw_dendrogram(tree, axes, n_clusters=2)
    assert [text.get_text() for text in axes.get_xticklabels()] == [str(tree.ids[k]) for k in drawn["leaves"]]
    np.testing.assert_allclose(sorted(max(each) for each in drawn["dcoord"]), tree.heights)
    assert len({*drawn["leaves_color_list"]} - {"0.45"}) <= 2
    with pytest.raises(dpdist.InputError, match="at least two clusters; this tree has one"):
        draw_dendrogram(Grown(FAMILIES[0], ALLOCATIONS[0], 0, k=1).tree, axes)


def test_a_tree_needs_a_conjugate_family() -> None:
    rows = np.random.default_rng(0).dirichlet([5.0, 2.0, 1.0], size=200)
    model = dpdist.SVA(dpdist.likelihoods.Dirichlet(), random_state=0, merge="distance").fit(rows)
    with pytest.raises(dpdist.InputError, match="conjugate prior"):
        model.tree(rows)


@pytest.mark.parametrize("asked", ["tree", "stability"])
def test_rows_that_are_not_finite_are_refused_by_name(asked) -> None:
    rows = clusters(2, rows=120)
    model = dpdist.DPMixture(max_laps=3, random_state=0)
    with pytest.warns(match="stopped at max_laps"):
        model.fit(rows)
    rows[5, 1] = np.nan
    with pytest.raises(dpdist.InputError, match="NaN or infinity, first in row 5"):
        getattr(model, asked)(rows)
