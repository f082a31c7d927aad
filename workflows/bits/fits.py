"""Fits of every method to small data, with digests of the results: ``python workflows/bits/fits.py`` prints JSON.

``run.py`` beside this file compares the digests of two commits, each made by its own copy of this file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from scipy import sparse

import dpdist
from dpdist import families
from dpdist.data import ArraySource
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.models.allocations import LearnedDirichletProcess
from dpdist.models.likelihoods import Dirichlet

Fitted = Any


def rows() -> np.ndarray:
    """Rows of seven groups, (2000, 4)."""
    rng = np.random.default_rng(7)
    means = 5 * rng.normal(size=(7, 4))
    return means[rng.integers(7, size=2000)] + rng.normal(size=(2000, 4))


def counts() -> np.ndarray:
    """Counts of five groups, (1200, 12)."""
    rng = np.random.default_rng(8)
    rates = rng.gamma(0.5, 4.0, size=(5, 12))
    return rng.poisson(rates[rng.integers(5, size=1200)]).astype(float)


def documents() -> sparse.csr_array:
    """Documents over four topics, (500, 20)."""
    rng = np.random.default_rng(9)
    topics = rng.dirichlet(np.full(20, 0.15), size=4)
    return sparse.csr_array(
        np.array([rng.multinomial(40, rng.dirichlet(np.full(4, 0.4)) @ topics) for _ in range(500)])
    )


def digest(*arrays: Any) -> str:
    """One digest of some arrays' bits."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def of_mixture(model: Fitted, x: Any) -> str:
    """Of a mixture: bound by lap, identities, weights, labels and densities of rows."""
    trace = (model.history_["elbo"].values, model.history_["proposal_gain"].values)
    return digest(*trace, model.component_ids_, model.weights_, model.predict(x), model.score_samples(x))


def of_pass(model: Fitted, x: Any) -> str:
    """Of a sequential pass: identities, weights, densities of rows."""
    return digest(model.component_ids_, model.weights_, model.score_samples(x))


def of_topics(model: Fitted, _: Any) -> str:
    """Of a topic model: bound by lap, identities, topics, weights."""
    return digest(model.history_["elbo"].values, model.topic_ids_, model.components_, model.topic_weights_)


def mixture(**given: Any) -> Fitted:
    """A mixture of a few laps."""
    return dpdist.DPMixture(**{"schedule": Memoized(batches=4), "random_state": 3, "max_laps": 8, **given})


def topics(**given: Any) -> Fitted:
    """A topic model of a few laps."""
    return dpdist.HDPTopicModel(
        **{"initial_topics": 6, "schedule": Memoized(batches=3), "random_state": 3, "max_laps": 5, **given}
    )


def mixtures() -> Iterator[tuple[str, Fitted, Any]]:
    """Mixtures to fit, by name, with their rows."""
    real, discrete = rows(), counts()
    yield "gaussian", mixture(), real
    yield "gaussian, float32", mixture(compute_dtype="float32"), real
    yield "gaussian, learned concentration", mixture(concentration=LearnedDirichletProcess(1.0, 0.1)), real
    yield "gaussian, batch", mixture(schedule=Memoized(batches=1)), real
    yield "gaussian, look-ahead", mixture(schedule=Memoized(batches=4, lookahead=1)), real
    yield (
        "gaussian, stochastic",
        mixture(schedule=Stochastic(batches=4), initial="k-means++", initial_components=9),
        real,
    )
    yield "gaussian, start by a pass", mixture(initial="sva"), real
    yield "gaussian, principal components", mixture(row_transform=dpdist.TransformPlan(scale=True, pca=3)), real
    yield "gaussian, finite", dpdist.FiniteMixture(n_components=9, random_state=3, max_laps=8), real
    for family in (families.ZeroMeanGaussian(), families.DiagonalGaussian(), families.IsotropicGaussian()):
        yield family.name, mixture(family=family), real
    for family in (families.Multinomial(), families.Poisson()):
        yield family.name, mixture(family=family), discrete
        yield f"{family.name}, sparse", mixture(family=family), sparse.csr_array(discrete)
    yield "bernoulli", mixture(family=families.Bernoulli()), (discrete > 2).astype(float)


def passes() -> Iterator[tuple[str, Fitted, Any]]:
    """Sequential passes, by name, with their rows."""
    real, discrete = rows(), counts()
    for family in (families.Gaussian(), families.DiagonalGaussian(), families.IsotropicGaussian()):
        yield f"pass, {family.name}", dpdist.SVA(family, random_state=3), real
    for family in (families.Multinomial(), families.Poisson()):
        yield f"pass, {family.name}", dpdist.SVA(family, random_state=3), discrete
    yield "pass, bernoulli", dpdist.SVA(families.Bernoulli(), random_state=3), (discrete > 2).astype(float)
    yield "pass, one after the other", dpdist.SVA(parallel=False, random_state=3), real
    shares = (discrete + 1) / (discrete + 1).sum(axis=1, keepdims=True)
    yield "pass, dirichlet", dpdist.SVA(Dirichlet(), random_state=3), shares


def topic_models() -> Iterator[tuple[str, Fitted, Any]]:
    """Topic models, by name, with their documents."""
    x = documents()
    learned = ("concentration", "document_concentration", "pseudocount")
    yield "topics", topics(), x
    yield "topics, learned", topics(learn=learned), x
    yield "topics, online", topics(weights="point", schedule=Stochastic(batches=4)), x
    yield "topics, online, learned", topics(weights="point", schedule=Stochastic(batches=4), learn=learned), x
    yield "topics, point estimate", topics(weights="point", schedule=Batch()), x


def source_of(x: Any) -> ArraySource:
    """Data in several partitions, so that batches and sums matter."""
    return ArraySource(x, None, 100)


def resumed(model: Fitted, x: Any, stop_after: int) -> Fitted:
    """The model of a run that is left after some laps and gone on with from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.zarr"
        laps = model.iter_fit(source_of(x), checkpoint_path=path)
        with contextlib.closing(laps):
            for _, _ in zip(range(stop_after), laps, strict=False):
                pass
        return dpdist.resume(path, source_of(x))


def all_digests() -> dict[str, str]:
    """Digests by name: every method in this process, some on workers, some resumed."""
    found: dict[str, str] = {}
    kinds: list[tuple[Callable[[], Any], Callable[[Fitted, Any], str]]] = [
        (mixtures, of_mixture),
        (passes, of_pass),
        (topic_models, of_topics),
    ]
    for cases, take in kinds:
        for name, model, x in cases():
            found[name] = take(model.fit(source_of(x)), x)
    for name, model, x in [*list(mixtures())[:7], *list(mixtures())[10:13]]:
        found[f"{name}, resumed"] = of_mixture(resumed(model, x, 3), x)
    for name, model, x in topic_models():
        found[f"{name}, resumed"] = of_topics(resumed(model, x, 2), x)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        for cases, take in kinds:
            name, model, x = next(cases())
            found[f"{name}, on two workers"] = take(model.fit(source_of(x)), x)
    return found


if __name__ == "__main__":
    print(json.dumps(all_digests(), indent=2))
