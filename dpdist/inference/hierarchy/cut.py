"""Cuts: fewer clusters, each made of several components of a fitted model, without refitting.

The responsibility of a cluster is the sum of its components' responsibilities, so a row's most probable cluster need
not contain its most probable component. Densities are those of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpdist.core.checks import POSITIVE
from dpdist.core.errors import InputError
from dpdist.inference.hierarchy.tree import Tree, in_order_of_first
from dpdist.inference.moves.pairs import gains_with
from dpdist.inference.prediction import Outside, Predictor
from dpdist.inference.transform import Description, Preparation
from dpdist.models.families.base import Family, Rows
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class Cut(Predictor):
    """A model whose components are grouped into clusters.

    Parameters
    ----------
    whole : the model
    groups : (K,) cluster index of each component
    elbo : exact ELBO of these clusters on the rows on which the tree was grown, in nats; NaN if no tree gives it
    """

    whole: Predictor
    groups: np.ndarray
    elbo: float = math.nan

    @property
    def preparation(self) -> Preparation:  # type: ignore[override]
        """Of the model."""
        return self.whole.preparation

    @property
    def ids(self) -> np.ndarray:  # type: ignore[override]
        """(G,) id of each cluster: that of its component with the largest weight."""
        weights = self.whole.weights()[0]
        heaviest = np.array([held[weights[held].argmax()] for held in self._held()])
        return np.asarray(self.whole.ids[heaviest])

    @property
    def columns(self) -> int:
        return self.whole.columns

    @property
    def family(self) -> Family | None:
        return self.whole.family

    @property
    def _size(self) -> int:
        return int(self.groups.max()) + 1

    def _held(self) -> list[np.ndarray]:
        """The components of each cluster."""
        return [np.flatnonzero(self.groups == group) for group in range(self._size)]

    @property
    def _members(self) -> np.ndarray:
        """(K, G) 1 if a component belongs to a cluster, else 0."""
        return np.asarray(np.eye(self._size)[self.groups])

    def scorer(self) -> Callable[[Rows], np.ndarray]:
        score, members = self.whole.scorer(), self._members

        def summed(rows: Rows) -> np.ndarray:
            scores = score(rows)
            best = scores.max(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                return np.asarray(best + np.log(np.exp(scores - best) @ members))

        return summed

    def background(self) -> Outside | None:
        return self.whole.background()

    def density(self) -> Callable[[Rows], np.ndarray]:
        return self.whole.density()

    def densities(self, components: np.ndarray) -> Callable[[Rows], np.ndarray]:
        held, shares = self._held(), self.whole.shares()
        densities = self.whole.densities(np.arange(len(self.groups)))
        log_shares = [np.log(shares[held[group]] / shares[held[group]].sum()) for group in components]

        def summed(rows: Rows) -> np.ndarray:
            found = densities(rows)
            among = zip(components, log_shares, strict=True)
            return np.stack([logsumexp(found[:, held[group]] + each, axis=1) for group, each in among], axis=1)

        return summed

    @property
    def rows(self) -> float:
        return self.whole.rows

    @property
    def uncut(self) -> Predictor:
        return self.whole.uncut

    def any_of_groups(self, of_components: np.ndarray) -> np.ndarray:
        return np.asarray(self.whole.any_of_groups(of_components) @ self._members > 0)

    def weights(self) -> tuple[np.ndarray, float]:
        weights, rest = self.whole.weights()
        return weights @ self._members, rest

    def sample(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        weights, drawn = self.whole.weights()[0], components - self._size + len(self.groups)  # unseen and background
        for group, held in enumerate(self._held()):
            mine = np.flatnonzero(components == group)
            drawn[mine] = rng.choice(held, size=len(mine), p=weights[held] / weights[held].sum())
        return self.whole.sample(drawn, rng)

    def describe(self) -> Description:
        model, total = self.mixture()
        return model.family.describe(total.stats)

    def mixture(self) -> tuple[Model, Summary]:
        model, total = self.whole.mixture()
        return model, Summary(self._members.T @ total.stats, np.zeros(self._size), total.base)


def cut(
    predictor: Predictor,
    tree: Tree | None,
    n_clusters: int | None = None,
    elbo_loss: float | None = None,
    min_cluster_size: float | None = None,
) -> Cut:
    """Fewer clusters of a fitted model.

    Parameters
    ----------
    predictor : the model
    tree : of its components; None if neither a number of clusters nor a loss is given
    n_clusters : number of clusters, or
    elbo_loss : nats by which the ELBO may be below that of the tree's best level; the fewest clusters within this loss
    min_cluster_size : expected number of rows in the fitted data; afterwards, each smaller cluster is merged with the
        cluster that gives the highest evidence, the smallest cluster first

    Raises
    ------
    InputError
        If a setting is invalid, or there is no tree of this model.
    """
    groups, elbo = np.arange(len(predictor.ids)), math.nan
    if n_clusters is not None or elbo_loss is not None:
        if tree is None or not np.array_equal(tree.ids, predictor.ids):
            raise InputError(
                "n_clusters and elbo_loss cut the tree of the model, but this model has no tree. Grow it first: in "
                "Python with model.tree(x), for a run with: dpdist tree run.zarr"
            )
        level = tree.level(n_clusters, elbo_loss)
        groups, elbo = tree.groups(level), float(tree.elbo[len(tree) - level])
    if min_cluster_size is not None:
        least, before = POSITIVE.take("min_cluster_size", min_cluster_size), groups
        groups = _without_small(Cut(predictor, groups), least)
        elbo = elbo if len(np.unique(before)) == len(np.unique(groups)) else math.nan
    return Cut(predictor, groups, elbo)


def _without_small(found: Cut, least: float) -> np.ndarray:
    """Groups (K,), each with at least `least` expected rows, unless only one group is left."""
    groups, (model, total) = found.groups.copy(), found.mixture()
    while len(total.counts) > 1 and total.counts.min() < least:
        small = int(total.counts.argmin())
        near = int(gains_with(model, total, small).argmax())
        groups[groups == small] = near
        groups = in_order_of_first(groups)
        total = Cut(found.whole, groups).mixture()[1]
    return groups
