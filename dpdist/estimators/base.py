"""What every fitted clustering does alike: predict, score, sample, with scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import xarray as xr
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist.core.checks import COUNT, instance, shown
from dpdist.core.errors import InputError
from dpdist.core.places import absolute
from dpdist.data import as_source
from dpdist.data.columns import Names
from dpdist.execution import Backend, SerialBackend
from dpdist.execution.connecting import active_client
from dpdist.execution.dask import DaskBackend
from dpdist.inference.prediction import Predictor, predict_partition
from dpdist.runs.preparing import Output
from dpdist.runs.run import Run
from dpdist.runs.specs import Spec
from dpdist.storage.checkpoint import Asked
from dpdist.storage.descriptions import described_as
from dpdist.storage.importing import path_of_class

S = TypeVar("S", bound=Spec)


def asked_of(estimator: BaseEstimator, seed: int) -> Asked:
    """What was asked of an estimator whose `random_state` gave `seed`.

    A RandomState is kept as that seed, what says where rows begin as an array; all else is kept as it is.
    """
    parameters = estimator.get_params(deep=False)
    if not isinstance(parameters["random_state"], Integral | None):
        parameters["random_state"] = seed
    if not isinstance(parameters.get("initial", ""), str):
        parameters["initial"] = np.asarray(parameters["initial"])
    return Asked(path_of_class(type(estimator)), parameters)


def output_of(
    estimator: BaseEstimator, seed: int, path: str | os.PathLike[str] | None, settings: dict[str, Any], overwrite: bool
) -> Output:
    """Where a run of an estimator is kept, and what with it; arguments as for :class:`Output` and :func:`asked_of`."""
    return Output(path, settings, overwrite, None if path is None else asked_of(estimator, seed))


def spec_of(kind: type[S], estimator: BaseEstimator) -> S:
    """The parameters of an estimator, checked."""
    parameters = estimator.get_params(deep=False)
    return kind(**{**parameters, "random_state": seed_of(parameters["random_state"])})


class Clustering(DensityMixin, BaseEstimator):
    """Prediction shared by all estimators; subclasses fit, and set the predictor."""

    family: Any
    random_state: Any
    n_components_: int
    component_ids_: np.ndarray
    weights_: np.ndarray

    def predict(self, x: Any) -> np.ndarray:
        """Position of each row's most probable component, (N,) int64; ``component_ids_[...]`` gives stable ids.

        There is no ``labels_``: the labels of the last model take a pass of their own and N numbers, so they are
        computed where they are asked for.
        """
        return self._gather(x, "labels")

    def fit_predict(self, x: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Fit to rows, then predict them."""
        return np.asarray(self.fit(x, sample_weight=sample_weight).predict(x))  # type: ignore[attr-defined]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Responsibilities of the components for each row, (N, K)."""
        return self._gather(x, "probabilities")

    def predict_top(self, x: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` most probable components of each row, best first: positions and probabilities, (N, count)."""
        check_is_fitted(self)
        parts = self._map(x, "top", min(COUNT.take("count", count), self.n_components_))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def score_samples(self, x: Any) -> np.ndarray:
        """Log predictive density of each row in raw columns, (N,), in nats; with PCA, on the plane that it keeps."""
        return self._gather(x, "log_density")

    def score(self, x: Any, y: Any = None) -> float:
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
        sampling_probabilities = np.append(weights, rest)
        components = generator.choice(
            len(sampling_probabilities), size=n_samples, p=sampling_probabilities / sampling_probabilities.sum()
        )
        return self._predictor.draw(components, generator), components

    @property
    def components_(self) -> xr.Dataset:
        """Posterior means of every component in raw columns, with named dimensions; with PCA, on the plane it keeps."""
        check_is_fitted(self)
        variables: dict[str, Any] = {
            name: (dims, values, {"long_name": described_as(name, dims).doc})
            for name, (dims, values) in self._predictor.described().items()
        }
        variables["weight"] = (("component",), self.weights_)
        return xr.Dataset(variables, coords={"component": self.component_ids_})

    def _show(self, predictor: Predictor) -> None:
        """Take a fitted model as this estimator's own."""
        self._predictor = predictor
        show_columns(self, predictor.preparation.columns, predictor.preparation.names)
        self.n_components_ = len(predictor.ids)
        self.component_ids_ = predictor.ids
        self.weights_, self.rest_weight_ = predictor.weights()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(getattr(self.family, "accepts_sparse", False))
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def _gather(self, x: Any, method: str) -> np.ndarray:
        return np.concatenate(self._map(x, method))

    def _map(self, x: Any, method: str, *arguments: Any) -> list[Any]:
        check_is_fitted(self)
        source, backend = as_source(x), default_backend()
        self._predictor.preparation.check_source(source, type(self).__name__)
        partitions = source.partitions
        shared = backend.share(self._predictor)
        columns = [[shared] * len(partitions), [method] * len(partitions)]
        columns += [[argument] * len(partitions) for argument in arguments]
        return backend.fetch(backend.map(predict_partition, backend.share_each(partitions), *columns))


def show_columns(estimator: BaseEstimator, columns: int, names: Names | None) -> None:
    """Set ``n_features_in_``, and ``feature_names_in_`` where the columns have names."""
    estimator.n_features_in_ = columns
    vars(estimator).pop("feature_names_in_", None)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def warn_unless_converged(fit: Run[Any]) -> None:
    """Warn as scikit-learn does of a fit that a limit ended."""
    told = None if fit.fitted is None else fit.limits.unmet(fit.fitted.stop)
    if told is not None:
        warnings.warn(told, ConvergenceWarning, stacklevel=4)


def default_backend() -> Backend:
    """The active Dask client, or this process."""
    client = active_client()
    return SerialBackend() if client is None else DaskBackend(client)


def chosen_backend(backend: Any) -> Backend:
    """The backend asked for, or the default; raises :class:`InputError` if it is none."""
    if backend is None:
        return default_backend()
    found: Backend = instance("a backend of dpdist.execution", Backend).or_none("the default").take("backend", backend)
    return found


def path_of(x: Any) -> str | None:
    """The path or URL that data were given by, absolute; None for arrays."""
    return absolute(x) if isinstance(x, str | os.PathLike) else None


def seed_of(random_state: Any) -> int:
    """`random_state`, as scikit-learn takes it, as one whole number."""
    is_whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if is_whole and random_state >= 0:
        return int(random_state)
    if not (random_state is np.random or isinstance(random_state, np.random.RandomState | None)):
        raise InputError(
            f"random_state should be a whole number from 0 on, a numpy RandomState or None; got {shown(random_state)}."
        )
    return int(check_random_state(random_state).randint(2**31 - 1))
