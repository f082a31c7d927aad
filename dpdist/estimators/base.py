"""Methods shared by all clusterings: prediction, scoring and sampling, with scikit-learn's conventions."""

from __future__ import annotations

import os
from copy import copy
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import DensityMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dpdist.core.checks import COUNT, FLAG
from dpdist.core.errors import InputError
from dpdist.data import Source, is_dask
from dpdist.data.checked import CheckedSource
from dpdist.estimators.fitted import Asks, Estimator, RandomState, default_backend, seed_of
from dpdist.inference.hierarchy.cut import Cut, cut
from dpdist.inference.hierarchy.growing import grow_tree
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.outliers import Flagged, Threshold, checked_rate, flagged, outlier_threshold
from dpdist.inference.prediction import Predictor, ask_each, mean_log_density, predict_partition
from dpdist.models.families import FAMILIES
from dpdist.models.likelihoods import LIKELIHOODS
from dpdist.runs.methods.rows import require_rows_of_fit
from dpdist.storage.descriptions import described_as

#: Dtype of the result of each predictor method.
_DTYPES = {"labels": "int64", "probabilities": "float64", "log_density": "float64", "margins": "float64"}


class Clustering(DensityMixin, Estimator[Asks]):
    """Base of all clustering estimators: prediction is shared, subclasses implement the fit."""

    _predictor: Predictor
    family: object
    random_state: RandomState
    n_components_: int
    component_ids_: np.ndarray
    weights_: np.ndarray
    tree_: Tree
    groups_: np.ndarray

    def predict(self, x: object, outliers: bool | float = False) -> np.ndarray:
        """Position of each row's most probable component, (N,) int64; ``component_ids_[...]`` gives stable ids.

        For a dask.array or a Dask data frame the result is a lazy dask.array, as it is for :meth:`predict_proba` and
        :meth:`score_samples`.

        Parameters
        ----------
        x : rows
        outliers : whether to label outliers -1. If the model has a background, outliers are the rows assigned to it.
            Otherwise they are the rows below :meth:`outlier_threshold`; a number is passed to it as `rate`. No row is
            then labelled with a component of scattered rows
        """
        outliers = bool(outliers) if FLAG.holds(outliers) else outliers  # NumPy's flags are flags too
        if outliers is False:
            return self._gather(x, "labels")
        check_is_fitted(self)
        return self._gather(x, "labels", flagged(self._predictor, default_backend(), self._problem.seed, outliers))

    def decision_function(self, x: object) -> np.ndarray:
        """Margin of each row over the outlier threshold, (N,), in nats; negative where ``predict(x, outliers=True)``
        is -1. If the model has a background, it is the log odds of the likeliest cluster against the background,
        otherwise the log density under the clusters minus :meth:`outlier_threshold`.
        """
        check_is_fitted(self)
        return self._gather(x, "margins", flagged(self._predictor, default_backend(), self._problem.seed, True))

    def outlier_threshold(self, rate: float | None = None) -> float:
        """Log density, in nats, below which a row is an outlier.

        The density is that of the clusters alone, without components of scattered rows (``scattered_``). If there are
        none, it differs from :meth:`score_samples` only by the weight left to components not yet seen.

        Parameters
        ----------
        rate : share of rows drawn from the clusters that fall below the threshold. Default: the rate at which one in
            twenty rows called outliers is expected to belong to a cluster, if the true outliers are as many as the
            rows in components of scattered rows (or one, if there are no such components)
        """
        return self._threshold(checked_rate(rate)).value

    @property
    def scattered_(self) -> np.ndarray:
        """Which components hold scattered rows, thinly spread around others, rather than a cluster, (K,) bool.

        Raises
        ------
        AttributeError
            If densities under the family cannot be compared across rows, such as those of counts given their totals.
        """
        try:
            threshold = self._threshold(None)
        except InputError as error:
            raise AttributeError(f"scattered_ cannot be computed: {error}") from error
        return ~self._predictor.any_of_groups(~threshold.scattered)

    def _threshold(self, rate: float | None) -> Threshold:
        check_is_fitted(self)
        return outlier_threshold(self._predictor, default_backend(), self._problem.seed, rate)

    def fit_predict(self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None) -> np.ndarray:
        """Fit to rows, then predict them."""
        return np.asarray(self.fit(x, sample_weight=sample_weight).labels_)

    @cached_property
    def labels_(self) -> np.ndarray:
        """Labels of the fitted rows, (N,) int64, as from :meth:`predict`.

        They take another pass over the rows, so they are computed at the first access, from the rows of the fit. The
        estimator holds a reference to these; copies, pickles and saved models do not. Raises :class:`CheckpointError`
        if the rows changed since the fit.
        """
        return self.predict(self._rows_of_fit("labels_", "predict(x)"))

    def predict_proba(self, x: object) -> np.ndarray:
        """Responsibilities of the components for each row, (N, K)."""
        return self._gather(x, "probabilities")

    def predict_top(self, x: object, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` most probable components of each row, best first; all K if `count` exceeds K.

        Returns
        -------
        components, probabilities : (N, min(count, K)) positions, int64, and float64
        """
        check_is_fitted(self)
        parts = self._map(self._source(x), "top", min(COUNT.take("count", count), self.n_components_))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def score_samples(self, x: object) -> np.ndarray:
        """Log predictive density of each row in raw columns, (N,), in nats; with PCA, on the principal subspace."""
        return self._gather(x, "log_density")

    def score(self, x: object, y: object = None) -> float:
        """Mean of :meth:`score_samples`; a row of weight w in a source counts as w rows."""
        return mean_log_density(default_backend(), self._source(x), self._predictor)

    def tree(self, x: object = None, *, sample_weight: npt.ArrayLike | None = None) -> Tree:
        """Merge tree of the clusters, from K down to one; each merge is the one that lowers the ELBO least.

        Takes at most two passes over the rows. The tree is kept as ``tree_`` and saved with the model.

        Parameters
        ----------
        x : the fitted rows; default: those of the fit, if this process holds them
        sample_weight : (N,) weights of the rows `x`, as at the fit

        Returns
        -------
        tree : the ELBO of every level, a ``linkage`` for SciPy, and distances between clusters
        """
        check_is_fitted(self)
        rows = self._rows_of_fit("tree()", "tree(x)") if x is None else x
        source = self._rows_like_fitted(rows, sample_weight)
        require_rows_of_fit(source, self._fitted)
        self.tree_ = grow_tree(self._predictor, source, default_backend(), self._problem.seed)
        return self.tree_

    def cut(
        self, n_clusters: int | None = None, *, elbo_loss: float | None = None, min_cluster_size: float | None = None
    ) -> Self:
        """The same model with fewer clusters, without another fit.

        Parameters
        ----------
        n_clusters : number of clusters; needs :meth:`tree`
        elbo_loss : alternatively, nats of ELBO that the cut may lose against the tree's best level; the cut then has
            the fewest clusters within this loss; needs :meth:`tree`
        min_cluster_size : clusters with fewer expected rows, in the data of the fit, join their likeliest neighbour

        Returns
        -------
        model : its clusters are groups of this model's clusters. ``groups_`` (K,) is the group of each cluster, so
            ``groups_[labels]`` coarsens labels predicted earlier. Predicting rows with the cut sums probabilities
            within each group first, which may give another label. ``elbo_`` is that of the tree's level, or NaN if
            small clusters joined others
        """
        check_is_fitted(self)
        fewer = cut(self._predictor, getattr(self, "tree_", None), n_clusters, elbo_loss, min_cluster_size)
        found = copy(self)
        for name in ("tree_", "labels_", "stability_"):
            found.__dict__.pop(name, None)
        if "_rows" in vars(self):
            found._rows = self._rows
        found._predictor = fewer
        found._show()
        found.groups_ = fewer.groups
        if "elbo_" in vars(found):
            found.__dict__["elbo_"] = fewer.elbo
        return found

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fitted model, and its tree if it has one, as a Zarr group that :func:`dpdist.load` reads.

        Raises
        ------
        InputError
            If this is a cut of a model.
        """
        if isinstance(getattr(self, "_predictor", None), Cut):
            raise InputError("a cut cannot be saved; save its model with the tree, and cut the loaded model again.")
        super().save(path, overwrite)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the posterior predictive, including the leftover stick and the background.

        Returns
        -------
        x : (n_samples, D) raw rows; with PCA, on the principal subspace
        components : (n_samples,) positions; K for a component not yet seen, -1 for the background
        """
        check_is_fitted(self)
        n_samples = COUNT.take("n_samples", n_samples)
        generator = np.random.default_rng(seed_of(self.random_state))
        weights, rest = self._predictor.weights()
        shares, outside = np.append(weights, rest), self._predictor.background()
        if outside is not None:
            shares = np.append((1 - outside.share) * shares, outside.share)
        components = generator.choice(len(shares), size=n_samples, p=shares / shares.sum())
        return self._predictor.draw(components, generator), np.where(components > len(weights), -1, components)

    @property
    def components_(self) -> xr.Dataset:
        """Posterior means of component parameters in raw columns, by name; with PCA, on the principal subspace."""
        check_is_fitted(self)
        variables: dict[str, object] = {
            name: (dims, values, {"long_name": described_as(name, dims).doc})
            for name, (dims, values) in self._predictor.described().items()
        }
        variables["weight"] = (("component",), self.weights_)
        return xr.Dataset(variables, coords={"component": self.component_ids_})

    @property
    def means_(self) -> np.ndarray:
        """Component means, or rates of counts, (K, D), in raw columns; only of families that have them."""
        return self._described_as("means_", "mean", "rate")

    @property
    def covariances_(self) -> np.ndarray:
        """Component covariances, (K, D, D), or variances, (K, D), in raw columns; only of families that learn them."""
        return self._described_as("covariances_", "covariance", "variance")

    def _described_as(self, asked: str, *names: str) -> np.ndarray:
        check_is_fitted(self)
        described = self._predictor.described()
        for name in names:
            if name in described:
                return described[name][1]
        raise AttributeError(f"this family has no {asked}; use components_, which has {', '.join(described)}.")

    def _rows_of_fit(self, told: str, otherwise: str) -> object:
        """The rows of the fit, verified as they are read; raises :class:`AttributeError`, whose message begins with
        `told`, if none are held."""
        check_is_fitted(self)
        if "_rows" not in self.__dict__:
            raise AttributeError(
                f"{told} needs the rows of the fit, which only an estimator that was fitted in this process to all "
                f"rows at once keeps. Use {otherwise}."
            )
        rows = self._rows
        return rows if rows.digests is None else CheckedSource(rows, rows.digests, "the fit")

    def _show(self) -> None:
        predictor = self._predictor
        self._show_columns(predictor.preparation.columns, predictor.preparation.names)
        self.n_components_ = len(predictor.ids)
        self.component_ids_ = predictor.ids
        self.weights_, self.rest_weight_ = predictor.weights()

    def __sklearn_tags__(self) -> Tags:
        tags, family = super().__sklearn_tags__(), self.family
        if isinstance(family, str):
            family = {**FAMILIES, **LIKELIHOODS}.get(family)
        tags.input_tags.sparse = bool(getattr(family, "accepts_sparse", False))
        return tags

    def _gather(self, x: object, method: str, model: Flagged | None = None) -> np.ndarray:
        """Results of a predictor method over all rows; for a dask.array, a lazy dask.array."""
        source = self._source(x)
        if isinstance(x, Source) or not is_dask(source):
            return np.concatenate(self._map(source, method, model=model))
        from dpdist.data.dask import mapped

        width, dtype = (self.n_components_ if method == "probabilities" else None), np.dtype(_DTYPES[method])
        ask = partial(predict_partition, predictor=model or self._predictor, method=method)
        return mapped(source.array, ask, width, dtype)  # as arrays go, in all but when it is computed

    def _source(self, x: object, sample_weight: npt.ArrayLike | None = None) -> Source:
        """The rows of `x`, checked to have the columns of the fit."""
        check_is_fitted(self)
        source = self._rows_like_fitted(x, sample_weight)
        self._predictor.check_source(source, type(self).__name__)
        return source

    def _map(self, source: Source, method: str, *arguments: object, model: Flagged | None = None) -> list[Any]:
        return ask_each(default_backend(), source.partitions, model or self._predictor, method, *arguments)
