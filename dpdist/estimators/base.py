"""What every fitted clustering does alike: predict, score, sample, with scikit-learn's conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import DensityMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist.core.checks import COUNT
from dpdist.data import as_source
from dpdist.estimators.fitted import Asks, Estimator, RandomState, default_backend
from dpdist.inference.prediction import Predictor, predict_partition
from dpdist.storage.descriptions import described_as


class Clustering(DensityMixin, Estimator[Asks]):
    """Prediction shared by all estimators; subclasses fit, and set the predictor."""

    _predictor: Predictor
    family: object
    random_state: RandomState
    n_components_: int
    component_ids_: np.ndarray
    weights_: np.ndarray

    def predict(self, x: object) -> np.ndarray:
        """Position of each row's most probable component, (N,) int64; ``component_ids_[...]`` gives stable ids.

        There is no ``labels_``: the labels of the last model take a pass of their own and N numbers, so they are
        computed where they are asked for.
        """
        return self._gather(x, "labels")

    def fit_predict(self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None) -> np.ndarray:
        """Fit to rows, then predict them."""
        return np.asarray(self.fit(x, sample_weight=sample_weight).predict(x))

    def predict_proba(self, x: object) -> np.ndarray:
        """Responsibilities of the components for each row, (N, K)."""
        return self._gather(x, "probabilities")

    def predict_top(self, x: object, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` most probable components of each row, best first: positions and probabilities, (N, count)."""
        check_is_fitted(self)
        parts = self._map(x, "top", min(COUNT.take("count", count), self.n_components_))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def score_samples(self, x: object) -> np.ndarray:
        """Log predictive density of each row in raw columns, (N,), in nats; with PCA, on the plane that it keeps."""
        return self._gather(x, "log_density")

    def score(self, x: object, y: object = None) -> float:
        """Mean of :meth:`score_samples`."""
        return float(self.score_samples(x).mean())

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the posterior predictive, the leftover stick included.

        Returns
        -------
        x : (n_samples, D) raw rows; with PCA, on the plane that it keeps
        components : (n_samples,) positions; K for a component not yet seen
        """
        check_is_fitted(self)
        n_samples = COUNT.take("n_samples", n_samples)
        rng = check_random_state(self.random_state)
        generator = np.random.default_rng(rng.randint(2**31 - 1))
        weights, rest = self._predictor.weights()
        shares = np.append(weights, rest)
        components = generator.choice(len(shares), size=n_samples, p=shares / shares.sum())
        return self._predictor.draw(components, generator), components

    @property
    def components_(self) -> xr.Dataset:
        """Posterior means of every component in raw columns, with named dimensions; with PCA, on the plane it keeps."""
        check_is_fitted(self)
        variables: dict[str, object] = {
            name: (dims, values, {"long_name": described_as(name, dims).doc})
            for name, (dims, values) in self._predictor.described().items()
        }
        variables["weight"] = (("component",), self.weights_)
        return xr.Dataset(variables, coords={"component": self.component_ids_})

    def _show(self) -> None:
        predictor = self._predictor
        self._show_columns(predictor.preparation.columns, predictor.preparation.names)
        self.n_components_ = len(predictor.ids)
        self.component_ids_ = predictor.ids
        self.weights_, self.rest_weight_ = predictor.weights()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(getattr(self.family, "accepts_sparse", False))
        return tags

    def _gather(self, x: object, method: str) -> np.ndarray:
        return np.concatenate(self._map(x, method))

    def _map(self, x: object, method: str, *arguments: object) -> list[Any]:
        check_is_fitted(self)
        source, backend = as_source(x), default_backend()
        self._predictor.preparation.check_source(source, type(self).__name__)
        partitions = source.partitions
        shared = backend.share(self._predictor)
        columns = [[given] * len(partitions) for given in (shared, method, *arguments)]
        return backend.fetch(backend.map(predict_partition, backend.share_each(partitions), *columns))
