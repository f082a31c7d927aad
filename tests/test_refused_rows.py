"""Rows that a model cannot hold are refused, and the model is then what it was, in memory and on disk."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from typer.testing import CliRunner

import dpdist
from dpdist import SVA
from dpdist.cli.root import app
from dpdist.models.families import DiagonalGaussian, Gaussian, IsotropicGaussian, ZeroMeanGaussian
from tests.runs import clusters

FAMILIES = [Gaussian(), DiagonalGaussian(), IsotropicGaussian(), ZeroMeanGaussian()]


def rows(seed: int) -> np.ndarray:
    return clusters(seed, 900, 3, 3, 9.0)


def uses(model: SVA) -> tuple[Any, ...]:
    """What a model says of itself and of rows."""
    told = model.rows_seen_, model.n_components_, model.component_ids_.tolist(), model.weights_.tolist()
    return *told, model.predict(rows(0)).tolist(), model.score(rows(0))


@pytest.mark.parametrize("far", [1e5, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_row_far_away_is_taken_or_changes_nothing(family: Any, far: float) -> None:
    model = SVA(family, random_state=0).partial_fit(rows(0))
    before = uses(model)
    try:
        model.partial_fit(np.concatenate([rows(1), np.full((1, 3), far)]))
    except dpdist.PrecisionError:
        assert uses(model) == before
    assert len(uses(model.partial_fit(rows(2)))) == len(before)


def test_a_stream_ends_with_the_block_of_a_row_far_away() -> None:
    read = list[int]()

    def blocks() -> Iterator[np.ndarray]:
        for seed in range(9):
            read.append(seed)
            yield rows(seed) if seed != 3 else np.concatenate([rows(seed), np.full((1, 3), 1e9)])

    with pytest.raises(dpdist.PrecisionError):
        SVA(random_state=0).fit(blocks())
    assert read == [0, 1, 2, 3]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_model_outlives_an_extension_by_a_row_far_away(tmp_path: Path, parallel: bool) -> None:
    """Also if the row comes in a round after which components are neither merged nor pruned."""
    path = tmp_path / "model.zarr"
    SVA(parallel=parallel, random_state=0).fit(rows(0)).save(path)
    before = dpdist.load(path).predict(rows(0))
    np.save(tmp_path / "new.npy", np.insert(np.concatenate([rows(seed) for seed in range(1, 6)]), 2700, 1e9, axis=0))
    np.save(tmp_path / "other.npy", rows(9))
    refused = CliRunner().invoke(app, ["extend", str(path), str(tmp_path / "new.npy"), "--serial"])
    assert refused.exit_code and isinstance(refused.exception, dpdist.PrecisionError) and "--give-up" in refused.output
    np.testing.assert_array_equal(dpdist.load(path).predict(rows(0)), before)
    done = CliRunner().invoke(app, ["extend", str(path), str(tmp_path / "other.npy"), "--serial", "--give-up"])
    assert not done.exit_code and dpdist.load(path).rows_seen_ == 1800


@pytest.mark.parametrize(
    "fit",
    [
        lambda: SVA(IsotropicGaussian()).partial_fit(rows(0)),
        lambda: SVA(IsotropicGaussian()).fit(iter([rows(0)])),
        lambda: dpdist.HDPTopicModel().partial_fit(sparse.csr_array(np.arange(40).reshape(8, 5))),
    ],
    ids=["partial_fit", "stream", "topics"],
)
def test_models_of_blocks_can_be_pickled_and_copied(fit: Any) -> None:
    model = fit()
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for name in ("component_ids_", "weights_", "topic_sizes_"):
            np.testing.assert_array_equal(getattr(other, name, 0), getattr(model, name, 0))
