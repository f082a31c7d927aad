"""What people look at: figures of stored runs, the page and the plots made of them, in a real browser too."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from matplotlib.figure import Figure
from matplotlib.image import imread
from scipy import sparse

import dpdist
from dpdist import plot
from dpdist.cli.root import app
from dpdist.data import ArraySource, as_source
from dpdist.execution.serial import SerialBackend
from dpdist.inference.prediction import Predictor
from dpdist.inference.topics.evaluation import coherence
from dpdist.report import reading
from dpdist.report.components import apart, profiles_of
from dpdist.report.figures import RunFigures
from dpdist.report.layout import plane, stress
from dpdist.report.page import json_of, page_of, write_page
from dpdist.report.pictures import address, as_image
from dpdist.report.reading import course_of, figures_of
from dpdist.report.rows import rows_of
from dpdist.report.watch import write_report
from dpdist.runs.opening import grow_stored_tree, model_in, open_run
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.history import LapRow
from tests.browser import Browser, browser
from tests.runs import clusters, mixture
from tests.test_cli import dpdist_command, succeeded

#: Charts of which a canvas holds some pixels; Bokeh's are within shadow roots.
PAINTED = """() => {
  const canvases = (node) => [...node.querySelectorAll("*")].flatMap((each) =>
    each.tagName === "CANVAS" ? [each] : each.shadowRoot ? canvases(each.shadowRoot) : []);
  const painted = (each) => each.width > 0 && each.height > 0 &&
    each.getContext("2d").getImageData(0, 0, each.width, each.height).data.some((value) => value > 0);
  return [...document.querySelectorAll(".chart")].filter((each) => canvases(each).some(painted))
    .map((each) => each.dataset.chart);
}"""
#: Where the lines of the course are drawn across, one a chart.
ACROSS = """() => Bokeh.index.roots.filter((view) => view.model.type === "Figure")
  .map((view) => view.model.renderers[0].data_source).filter((source) => source.name === "course")
  .map((source) => [...source.data.x])"""
#: 3 x 2 pictures of four kinds.
SHAPE = (3, 2)
KINDS = ["mixture", "pass", "topics"]


def pictures() -> np.ndarray:
    """Rows that are pictures: four shapes with noise, in columns of quite different scale."""
    rng = np.random.default_rng(5)
    shapes = np.array([[9, 0, 0, 0, 0, 0], [0, 0, 9, 9, 0, 0], [0, 9, 0, 0, 9, 0], [0, 0, 0, 0, 0, 9.0]])
    return (shapes[rng.integers(4, size=900)] + rng.normal(size=(900, 6))) * [1, 2, 3, 1, 1, 1]


def documents() -> sparse.csr_array:
    rng = np.random.default_rng(9)
    topics = rng.dirichlet(np.full(20, 0.15), size=4)
    return sparse.csr_array(
        np.array([rng.multinomial(40, rng.dirichlet(np.full(4, 0.4)) @ topics) for _ in range(300)])
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A mixture, a pass and topics, fitted and kept."""
    folder = tmp_path_factory.mktemp("report")
    for name, rows in {"rows": pictures(), "more": pictures()[:200] + 0.1}.items():
        array = zarr.create_array(folder / f"{name}.zarr", shape=rows.shape, dtype="float64", chunks=(100, 6))
        array[...] = rows
    plan = dpdist.TransformPlan(pca=5, scale=True)
    held = {"holdout": folder / "more.zarr"}
    fits: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "mixture": (mixture(row_transform=plan, max_laps=20), folder / "rows.zarr", held),
        "pass": (dpdist.SVA(), folder / "rows.zarr", held),
        "topics": (dpdist.HDPTopicModel(initial_topics=6, max_laps=15, tolerance=1e-300), documents(), {}),
    }
    for kind, (model, data, given) in fits.items():
        for _ in model.iter_fit(data, checkpoint_path=folder / kind, **given):
            pass
    return folder


@pytest.fixture(scope="module")
def figures(folder) -> dict[str, RunFigures]:
    shape = {"mixture": "3x2"}
    data = {"topics": documents()}
    return {kind: figures_of(folder / kind, data.get(kind), image_shape=shape.get(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def pages(figures) -> dict[str, str]:
    return {kind: page_of(figures[kind]) for kind in KINDS}


def same(found: object, wanted: float) -> bool:
    """Whether a figure is a number, or none of it."""
    return found is None if math.isnan(wanted) else found == wanted


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def assert_equals_store(told: Any, path: Path) -> None:
    """Figures of a page against what is stored, number by number."""
    store = RunStore.open(path)
    history, fitted = store.history(), store.fitted()
    assert fitted is not None and len(told["laps"]) == len(history.laps) > 0
    for lap, row, times in zip(told["laps"], history.laps, history.times, strict=True):
        assert (lap["lap"], lap["rows"], lap["n_components"]) == (row.lap, row.rows, row.n_components)
        assert same(lap["elbo"], row.elbo) and same(lap["holdout"], row.holdout_score)
        assert lap["seconds"] == row.seconds and lap["spent"]["moves"] == times.moves
        assert same(lap["per_unit"], row.per_unit)
    assert told["laps"][-1]["elapsed"] == pytest.approx(history.seconds)
    judged = [(row.lap, row.kind, row.reason.value) for row in history.proposals]
    assert [(each["lap"], each["kind"], each["reason"]) for each in told["proposals"]] == judged
    gains = zip(told["proposals"], history.proposals, strict=True)
    assert all(same(each["gain"], row.gain) for each, row in gains)
    assert same(told["elbo"], fitted.elbo) and told["n_components"] == len(fitted.ids) and told["rows"] == fitted.rows
    assert same(told["per_unit"], history.laps[-1].per_unit) and same(told["holdout"], history.laps[-1].holdout_score)
    weights, rest = model_in(open_run(path)).weights()
    assert told["rest_weight"] == rest > 0
    weight_of = dict(zip(fitted.ids.tolist(), weights, strict=True))
    assert dict(zip(told["ids"], told["weights"], strict=True)) == weight_of
    counts = reading._counts(reading.view_of(path))
    size_of = dict(zip(fitted.ids.tolist(), counts, strict=True))
    assert [(each["size"], each["weight"]) for each in told["components"]] == [
        (size_of[each["id"]], weight_of[each["id"]]) for each in told["components"]
    ]
    assert told["map"]["sizes"] == [size_of[id] for id in told["map"]["ids"]]
    assert told["sizes"] == [size_of[id] for id in told["ids"]] == sorted(told["sizes"], reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pages_numbers_are_the_stores(folder, pages, kind) -> None:
    page = pages[kind]
    assert_equals_store(embedded(page), folder / kind)
    assert len(page) < 5_000_000
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!data:)', markup) and "url(" not in markup


@pytest.mark.parametrize(
    ("kind", "panels", "charts"),
    [
        (
            "mixture",
            "course moves clusters map sizes time specification",
            "elbo holdout components moves map sizes time",
        ),
        ("pass", "course clusters map sizes time specification", "holdout components map sizes time"),
        ("topics", "course moves clusters map sizes time specification", "elbo components moves map sizes time"),
    ],
)
def test_every_panel_is_there(pages, kind, panels, charts) -> None:
    page = pages[kind]
    assert re.findall(r'<section class="panel" id="(\w+)">', page) == panels.split()
    assert re.findall(r'<div class="chart" data-chart="(\w+)">', page) == charts.split()


def test_what_a_mixture_shows_of_its_clusters(folder, figures) -> None:
    found, predictor = figures["mixture"], model_in(open_run(folder / "mixture"))
    centres = predictor.described()["mean"][1]
    positions = {int(id): k for k, id in enumerate(predictor.ids)}
    assert isinstance(predictor, Predictor) and found.image_shape == SHAPE
    for each in found.components:
        np.testing.assert_allclose(each.picture, centres[positions[each.id]])
    rows, model = pictures(), dpdist.load(folder / "mixture")
    labels, scores = model.predict(rows), predictor.scorer()(predictor.preparation.apply(rows))
    for each in found.components:
        own = np.flatnonzero(labels == positions[each.id])
        best = own[np.argsort(-scores[own, positions[each.id]], kind="stable")]
        assert [row.place for row in each.nearest] == best[: len(each.nearest)].tolist()
        for row in each.nearest:
            np.testing.assert_array_equal(row.values, rows[row.place])
    assert found.seen.startswith("all 900 rows of")


def test_profiles_tell_how_far_columns_are_from_the_whole(folder) -> None:
    found, rows = figures_of(folder / "mixture", rows=900), pictures()
    predictor = model_in(open_run(folder / "mixture"))
    centres = predictor.described()["mean"][1]
    standard = (centres - rows.mean(axis=0)) / rows.std(axis=0)
    for each in found.components:
        k = int(np.flatnonzero(predictor.ids == each.id)[0])
        telling = [int(column.name.removeprefix("column ")) for column in each.columns]
        for row in each.nearest:
            np.testing.assert_array_equal(row.values, rows[row.place, telling])
        assert [column.name for column in each.columns] == [
            f"column {d}" for d in np.argsort(-np.abs(standard[k]), kind="stable")
        ]
        np.testing.assert_allclose([column.standard for column in each.columns], np.sort(np.abs(standard[k]))[::-1] *
                                   np.sign([column.standard for column in each.columns]))  # fmt: skip


def test_a_tree_is_shown_once_it_is_grown(folder, tmp_path) -> None:
    model, rows = dpdist.load(folder / "mixture"), pictures()
    with pytest.raises(dpdist.InputError, match="has no tree yet"):
        plot.tree(model)
    with pytest.raises(dpdist.CheckpointError, match="is a topic model of documents, not a model of rows"):
        plot.tree(folder / "topics")
    tree = model.tree(rows)
    model.save(tmp_path / "grown.zarr")
    found = figures_of(tmp_path / "grown.zarr", rows)
    assert found.tree is not None and sorted(found.tree.ids) == sorted(tree.ids.tolist())
    assert sorted(max(line) for line in found.tree.y) == sorted(tree.heights)
    assert found.tree.elbo == tuple(tree.elbo)
    assert 'data-chart="tree"' in page_of(found)
    assert plot.tree(tmp_path / "grown.zarr", n_clusters=2).get_ylabel().startswith("ELBO")
    assert "cut to 2 clusters" in model.cut(2)._repr_html_()


def test_what_topics_show(folder, figures) -> None:
    found, predictor = figures["topics"], model_in(open_run(folder / "topics"))
    npmi = coherence(predictor.topics, documents())
    for each in found.components:
        k = int(np.flatnonzero(predictor.ids == each.id)[0])
        best = np.argsort(-predictor.topics[k], kind="stable")[:12]
        assert list(each.words) == [f"word {w}" for w in best]
        assert each.coherence == pytest.approx(npmi[k])
    assert figures_of(folder / "topics").components[0].coherence is None  # the documents were in memory


def test_topics_are_told_with_their_own_sizes_and_weights_in_any_order(folder) -> None:
    view = reading.view_of(folder / "topics")
    counts, weights = reading._counts(view), view.predictor.weights()[0]
    places = np.arange(len(counts))[::-1]
    found = reading._topics(view, view.predictor, documents(), places, 100)["components"]
    wanted = zip(view.predictor.ids[places], counts[places], weights[places], strict=True)
    assert [(each.id, each.size, each.weight) for each in found] == list(wanted)


def test_where_data_are_not_at_hand_rows_of_the_model_stand_in(folder) -> None:
    model = dpdist.load(folder / "mixture")
    found = figures_of(model)
    assert found.seen.startswith("2,000 rows drawn from the model") and not found.components[0].nearest
    real = figures_of(folder / "mixture")
    for drawn, read in zip(found.components, real.components, strict=True):
        told = ({column.name: column.standard for column in each.columns} for each in (drawn, read))
        assert dict(sorted(next(told).items())) == pytest.approx(dict(sorted(next(told).items())), abs=0.25)
    with pytest.raises(dpdist.InputError, match="6 columns"):
        figures_of(folder / "mixture", pictures()[:, :3])


def test_columns_that_were_left_out_at_the_fit_are_left_out_again(tmp_path, monkeypatch) -> None:
    """From a table with names of rows to a report, in the commands that people are told."""
    monkeypatch.chdir(tmp_path)
    rows = clusters(0)
    table = pd.DataFrame(rows, columns=["a", "b", "c"])
    table.insert(0, "name", [f"row {i}" for i in range(len(rows))])
    table.to_csv("rows.csv", index=False)
    for given in (
        ["fit", "rows.csv", "--drop", "name", "--serial", "--max-laps", 2],
        ["report", "run.zarr", "-o", "r.html"],
    ):
        app([*map(str, given)], standalone_mode=False)
    told = embedded((tmp_path / "r.html").read_text())
    assert told["seen"].startswith("all 900 rows of")
    for each in told["components"]:
        for column in each["columns"]:
            d = "abc".index(column["name"])
            assert column["standard"] == pytest.approx((column["centre"] - rows[:, d].mean()) / rows[:, d].std())
    assert len(told["components"]) == told["n_components"]


def test_rows_that_stand_in_are_of_the_clusters_alone() -> None:
    """Few rows leave much weight to clusters unseen, draws of which would be far off."""
    rows = clusters(0, rows=60)
    model = mixture(max_laps=6, concentration=20.0).fit(rows)
    some = reading.rows_of(reading.view_of(model), None, 2000)
    assert model.rest_weight_ > 0.1 and some is not None and some.places is None
    np.testing.assert_allclose(some.rows.std(axis=0), rows.std(axis=0), rtol=0.5)


@pytest.mark.parametrize("shape", ["3", "3x3", "0x6", "2x1x3x1", "axb", "3x1x2"])
def test_a_wrong_image_shape_is_told(folder, shape) -> None:
    with pytest.raises(dpdist.InputError, match=r"image shape|images of"):
        figures_of(folder / "mixture", image_shape=shape)


def test_distances_are_mahalanobis_between_clusters_of_one_covariance() -> None:
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 20.0]])
    rows = np.repeat(means, 4000, axis=0) + rng.normal(size=(12000, 2))
    family = dpdist.families.IsotropicGaussian(variance=1.0)
    model = mixture(family=family, initial=np.repeat(np.eye(3), 4000, axis=0), moves=[], max_laps=2).fit(rows)
    found = apart(model._predictor, np.arange(3))
    centres = model.components_["mean"].values
    wanted = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.testing.assert_allclose(found.distances, wanted, atol=0.2)
    np.testing.assert_allclose(found.overlaps.sum(axis=1), 1.0)
    assert np.all(np.diag(found.overlaps) > 0.97)


def test_what_lies_on_a_plane_is_laid_out_as_it_is() -> None:
    places = np.random.default_rng(1).normal(size=(12, 2)) * [5, 1]
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    found = plane(distances)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=2), distances, atol=1e-6)
    assert stress(distances, found) < 1e-6
    for few in (distances[:1, :1], distances[:2, :2]):
        again = plane(few)
        np.testing.assert_allclose(np.linalg.norm(again[:, None] - again[None], axis=2), few)


def test_things_alike_have_places_and_a_finite_error() -> None:
    distances = np.ones((5, 5)) - np.eye(5)
    distances[3, 4] = distances[4, 3] = 0.0
    assert stress(distances, plane(distances)) < 100


def test_the_map_joins_topics_by_the_words_they_have_and_leaves_out_those_of_none(monkeypatch) -> None:
    """Topics of few tokens are nearly the prior, and as such like one another: their own words tell them apart."""
    counts = np.zeros((6, 2000))
    for topic, words in enumerate((range(9), range(1, 10), range(100, 109), range(101, 110), [500])):
        counts[topic, list(words)] = 8.0
    topics = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    predictor = SimpleNamespace(ids=np.arange(6), topics=topics)
    found = reading._map_of_topics(predictor, counts.sum(axis=1), np.arange(5))
    assert [link[:2] for link in found.links] == [(0, 1), (2, 3)]


def test_a_page_says_what_it_leaves_out(folder, figures, pages, monkeypatch) -> None:
    """Of many clusters the map shows the largest, of many proposals those taken and the most promising."""
    found, page = figures["mixture"], pages["mixture"]
    assert "All proposals, by gain" in page and "Near circles are similar" in page
    assert f"of {found.n_components}. Near circles are similar" not in page
    many, all_of = len(found.proposals), found.n_components
    monkeypatch.setattr(reading, "MEASURED", all_of - 1)
    part, unasked = figures_of(folder / "mixture"), replace(found.proposals[0], gain=math.nan, accepted=False)
    told = page_of(replace(part, proposals=(*found.proposals, unasked)))
    assert f"{many:,} of {many + 1:,} proposals, by gain" in told
    assert f"The largest {all_of - 1} of {all_of}. Near circles are similar" in told


def test_one_cluster_is_told_as_one(tmp_path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    dpdist.DPMixture(random_state=0).fit(rows).save(tmp_path / "one.zarr")
    line = next(write_report(str(tmp_path / "one.zarr"), tmp_path / "a.html", None, None, 5, 100, False))
    told = (tmp_path / "a.html").read_text()
    assert " laps, 1 cluster;" in line and "The only one: " in told
    assert "All 1:" not in told and "largest 1 of" not in told and ">-0.00<" not in told


def test_the_map_leaves_out_what_holds_nothing(folder, monkeypatch) -> None:
    counts = reading._counts(reading.view_of(folder / "topics"))
    monkeypatch.setattr(reading, "_counts", lambda view: np.where(np.arange(len(counts)) == 2, 0.0, counts))
    found = figures_of(folder / "topics")
    assert found.map is not None and len(found.map.ids) == len(found.ids) - 1 == len(counts) - 1
    assert found.ids[-1] not in found.map.ids and found.sizes[-1] == 0


def test_pictures_hold_their_values(tmp_path) -> None:
    values = np.linspace(-1.0, 3.0, 12)
    told = address(as_image(values, (3, 4), (-1.0, 3.0)))
    (tmp_path / "one.png").write_bytes(__import__("base64").b64decode(told.partition(",")[2]))
    found = imread(tmp_path / "one.png")
    np.testing.assert_allclose(found[..., 0], ((values + 1) / 4).reshape(3, 4), atol=1 / 250)


def test_a_run_without_a_lap_and_one_that_was_left(tmp_path) -> None:
    run = mixture(max_laps=8).prepare(clusters(0), tmp_path / "run.zarr")
    run.close()
    page = page_of(figures_of(tmp_path / "run.zarr"), again=5)
    assert "No lap is finished yet" in page and 'http-equiv="refresh"' in page
    assert "not finished: continue with dpdist resume" in next(
        write_report(str(tmp_path / "run.zarr"), tmp_path / "a.html", None, None, 5, 100, True)
    )
    left = mixture(max_laps=5).iter_fit(clusters(0), checkpoint_path=tmp_path / "left.zarr")
    next(left)
    left.close()
    watching = write_report(str(tmp_path / "left.zarr"), tmp_path / "b.html", None, None, 5, 100, True)
    assert "1 lap, " in next(watching) and 'http-equiv="refresh"' in (tmp_path / "b.html").read_text()
    dpdist.resume(tmp_path / "left.zarr", clusters(0))
    assert "5 laps" in next(watching) and 'http-equiv="refresh"' not in (tmp_path / "b.html").read_text()
    assert list(watching) == []


def test_a_run_whose_name_is_no_text_has_a_page(tmp_path) -> None:
    path = tmp_path / os.fsdecode(b"r\xe4.zarr")
    mixture(max_laps=1).fit(clusters(0)).save(path)
    assert list(write_report(str(path), tmp_path / "a.html", None, None, 5, 100, False))
    assert "r\\udce4.zarr" in (tmp_path / "a.html").read_text()


def test_a_run_that_goes_on_while_it_is_read_is_watched_further(tmp_path, monkeypatch) -> None:
    path = str(tmp_path / "run.zarr")
    for _ in mixture(max_laps=1).iter_fit(clusters(0), checkpoint_path=path):
        pass

    def overtaken(*given: object, **named: object) -> None:
        monkeypatch.undo()
        dpdist.resume(path, clusters(0), max_laps=2)
        raise dpdist.CheckpointError("it went on")

    monkeypatch.setattr("dpdist.report.watch.figures_of", overtaken)
    assert ["2 laps" in told for told in write_report(path, tmp_path / "a.html", None, None, 5, 100, True)] == [True]


def test_the_command_writes_the_page(folder) -> None:
    given = ["report", "mixture", "-o", "page.html", "--image-shape", "3x2", "--largest", 2]
    assert "page.html: " in succeeded(dpdist_command(*given, folder=folder))
    told = embedded((folder / "page.html").read_text())
    assert_equals_store(told, folder / "mixture")
    assert len(told["components"]) == 2 and not list(folder.glob(".*partial"))


@pytest.mark.parametrize("kind", KINDS)
def test_plots_draw_the_same_figures_on_given_axes(folder, figures, kind) -> None:
    found, axes = figures[kind], Figure().subplots(5)
    drawn = [draw(found, each) for draw, each in zip(
        (plot.trace, plot.components, plot.sizes, plot.clusters, plot.map), axes, strict=True)]  # fmt: skip
    assert drawn == list(axes)
    shown = [lap.per_unit for lap in found.laps] if kind != "pass" else [lap.holdout for lap in found.laps]
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), [value for value in shown if value is not None])
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), [lap.n_components for lap in found.laps])
    assert [bar.get_height() for bar in axes[2].patches] == list(found.sizes)
    assert plot.trace(folder / kind, seconds=True).get_xlabel() == "seconds"
    assert plot.clusters(folder / kind) is not None


def test_rows_that_came_block_by_block_have_clusters_to_draw_but_no_course() -> None:
    model = dpdist.SVA().partial_fit(clusters(0, rows=300))
    for draw in (plot.trace, plot.components):
        with pytest.raises(dpdist.InputError, match="no laps to draw, as its rows came block by block"):
            draw(model)
    assert len(plot.sizes(model).patches) == model.n_components_


def test_notebooks_show_runs_and_models(folder) -> None:
    model = dpdist.load(folder / "mixture")
    told = model._repr_html_()
    assert f"{model.n_components_:,}" in told and told.count("<polyline") == 2
    assert model._repr_mimebundle_()["text/html"].startswith(told[: told.index("</div>")])
    assert "<polyline" not in dpdist.DPMixture()._repr_html_()
    run = mixture(max_laps=2).prepare(clusters(0))
    assert "running" in run._repr_html_()
    with pytest.raises(dpdist.InputError, match="should have a finished lap"):
        plot.trace(run)
    for _ in run:
        pass
    assert "max_laps" in run._repr_html_() and course_of(run).laps[1].lap == 2
    with pytest.raises(dpdist.InputError, match="a path, a run, or a fitted estimator"):
        course_of(7)


def test_what_is_no_number_is_null() -> None:
    lap = LapRow(1, 2.0, 2.0, math.nan, math.nan, 1, 0.5, math.nan)
    assert same(None, lap.elbo)
    assert "NaN" not in json_of(course_of(dpdist.SVA().fit(clusters(0, rows=300))))


@pytest.fixture(scope="module")
def long(folder) -> Path:
    """A run of 60 laps with its tree."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(size=(600, 6)) @ np.random.default_rng(1).normal(size=(6, 6))
    rows[:, 0] = rows[:, 1] ** 2 + rows[:, 3]
    plan = dpdist.TransformPlan(pca=5, scale=True)
    model = mixture(row_transform=plan, schedule=dpdist.schedules.Memoized(batches=3), max_laps=60, tolerance=1e-300)
    for _ in model.iter_fit(rows, checkpoint_path=folder / "long"):
        pass
    grow_stored_tree(str(folder / "long"), as_source(rows), SerialBackend())
    write_page(figures_of(folder / "long", rows), folder / "long.html")
    return folder / "long"


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


PANELS = "course moves clusters map tree sizes time specification"
CHARTS = "elbo components moves map tree sizes time"


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
def test_a_browser_draws_every_panel_of_sixty_laps_and_says_nothing(opened, long, tmp_path, width, dark) -> None:
    page = long.parent / "long.html"
    assert page.stat().st_size < 5_000_000
    opened.open(page, width, dark=dark)
    panels = "[...document.querySelectorAll('section.panel')].filter((e) => e.offsetHeight > 60).map((e) => e.id)"
    assert opened.evaluate(panels) == PANELS.split()
    assert opened.evaluate(f"({PAINTED})()") == CHARTS.split()
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert opened.said == [] and opened.busy() < 2.0
    told = opened.evaluate("document.getElementById('figures').textContent")
    assert_equals_store(json.loads(told), long)
    assert len(json.loads(told)["laps"]) == 60
    shades = imread(opened.picture(tmp_path / "page.png"))[:, :, :3].mean()
    assert shades < 0.3 if dark else shades > 0.8


def test_the_theme_and_what_is_drawn_across_are_turned_by_a_click(opened, long) -> None:
    opened.open(long.parent / "long.html")
    paper, ticks = "getComputedStyle(document.documentElement).backgroundColor", f"({ACROSS})()"
    light, laps = opened.evaluate(paper), opened.evaluate(ticks)
    opened.click("#theme")
    assert opened.evaluate(paper) != light
    opened.click("#theme")
    assert opened.evaluate(paper) == light
    opened.click("[data-x=elapsed]")
    told = json.loads(opened.evaluate("document.getElementById('figures').textContent"))
    assert laps == [[lap["lap"] for lap in told["laps"]]] * 2
    assert opened.evaluate(ticks) == [[lap["elapsed"] for lap in told["laps"]]] * 2
    assert opened.said == []


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
@pytest.mark.parametrize("kind", ["pass", "topics"])
def test_pages_of_other_kinds_are_drawn_without_a_word(opened, folder, figures, tmp_path, kind, width, dark) -> None:
    page = tmp_path / "page.html"
    write_page(figures[kind], page)
    opened.open(page, width, dark=dark)
    charts = re.findall(r'data-chart="(\w+)"', page.read_text())
    assert opened.evaluate(f"({PAINTED})()") == charts and len(charts) >= 5
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert_equals_store(json.loads(opened.evaluate("document.getElementById('figures').textContent")), folder / kind)
    assert opened.said == [] and opened.busy() < 2.0 and page.stat().st_size < 5_000_000


def test_a_page_that_is_watched_follows_its_run_by_itself(opened, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dpdist.report.watch.LOOK", 2)
    model = mixture(max_laps=4)
    going = model.iter_fit(clusters(0), checkpoint_path=tmp_path / "run.zarr", checkpoint_seconds=0)
    for _ in range(2):
        next(going)
    watching = write_report(str(tmp_path / "run.zarr"), tmp_path / "page.html", None, None, 5, 100, True)
    assert "4 laps" not in next(watching)
    opened.open(tmp_path / "page.html")
    told = "JSON.parse(document.getElementById('figures').textContent).laps.length"
    shown = f"(document.documentElement?.dataset.drawn > 0 ? {told} : 0)"
    opened.wait(f"0 < {shown} && {shown} < 4")
    list(going)
    list(watching)
    opened.wait(f"{shown} === 4")
    assert opened.said == []
    assert_equals_store(
        json.loads(opened.evaluate("document.getElementById('figures').textContent")), tmp_path / "run.zarr"
    )


def test_what_goes_wrong_in_a_page_is_heard(opened, folder, pages) -> None:
    wrong = pages["pass"].replace("</main>", "<script>console.error(1); nothing()</script></main>")
    (folder / "wrong.html").write_text(wrong)
    opened.open(folder / "wrong.html")
    assert len(opened.said) == 2


def test_a_picture_needs_a_value_a_column(tmp_path, monkeypatch) -> None:
    model, rows = mixture(max_laps=1), clusters(1, columns=4)
    model.fit(rows)
    monkeypatch.setattr(type(model._predictor), "described", lambda self: {})
    with pytest.raises(dpdist.InputError, match="have no mean, share, rate or covariance to draw"):
        figures_of(model, image_shape="2x2")
    assert figures_of(model).components


@pytest.mark.parametrize("kind", ["Poisson", "Multinomial"])
def test_the_nearest_rows_of_counts_are_typical_ones(kind: str) -> None:
    rng = np.random.default_rng(0)
    rates = np.array([[8.0, 8.0, 40.0], [30.0, 5.0, 5.0]])
    means = rates[rng.integers(2, size=600)]
    counts = rng.integers(3, 100, size=600)
    rows = (
        rng.poisson(means) if kind == "Poisson" else rng.multinomial(counts, means / means.sum(axis=1, keepdims=True))
    )
    model = dpdist.DPMixture(getattr(dpdist.families, kind)(), random_state=0).fit(rows)
    for each in figures_of(model, rows).components:
        near = rows[[row.place for row in each.nearest]]
        shares = near / near.sum(axis=1, keepdims=True)
        rate = rates[0 if shares[:, 2].mean() > 0.5 else 1]
        np.testing.assert_allclose(shares, np.tile(rate / rate.sum(), (len(near), 1)), atol=0.08)
        if kind == "Poisson":
            np.testing.assert_allclose(near, np.tile(rate, (len(near), 1)), atol=6)


def test_the_whole_of_weighted_rows_is_weighted() -> None:
    rng = np.random.default_rng(0)
    rows, weights = (
        np.concatenate([rng.normal(0, 1, (200, 1)), rng.normal(10, 1, (200, 1))]),
        np.repeat([1.0, 9.0], 200),
    )
    model = mixture(max_laps=3).fit(rows, sample_weight=weights)
    some = rows_of(model.view(), ArraySource(rows, weights), 400)
    found = profiles_of(model.view().predictor, some)
    mean = np.average(rows[:, 0], weights=weights)
    assert found.whole == pytest.approx(mean)
    assert found.spread == pytest.approx(np.sqrt(np.average((rows[:, 0] - mean) ** 2, weights=weights)))


def test_a_run_of_another_machine_is_shown_at_once_and_told_as_it_may_be(tmp_path, monkeypatch) -> None:
    path = tmp_path / "run.zarr"
    fit = mixture(max_laps=9, tolerance=0.0).iter_fit(clusters(0, rows=200), checkpoint_path=path)
    next(fit)
    assert reading.view_of(path).going_on is False  # this process cannot wait for itself
    monkeypatch.setattr("dpdist.core.lease._machine", lambda: "another machine")
    monkeypatch.setattr("dpdist.core.lease.lives", None)  # who would watch for a while
    assert reading.view_of(path).state.startswith("not finished; another machine may be working on it")
    fit.close()
