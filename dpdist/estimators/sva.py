"""The estimator of sequential variational approximation: one pass over rows or a stream, which adds components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy.typing as npt

from dpdist.core.errors import InputError
from dpdist.core.settings import documented_by
from dpdist.data import stream_blocks
from dpdist.estimators.base import Clustering
from dpdist.estimators.fitted import Manner, RandomState
from dpdist.execution import SerialBackend
from dpdist.inference.hierarchy.cut import Cut
from dpdist.inference.sva.base import SVAState
from dpdist.inference.sva.prune_merge import MergeTest
from dpdist.inference.sva.sequence import SVAProblem, advance_block, last_look, usable
from dpdist.inference.transform import TransformPlan
from dpdist.models.families import Family
from dpdist.models.likelihoods import Likelihood
from dpdist.runs.methods.rows import check_new_rows
from dpdist.runs.methods.sva import begin_pass, passed
from dpdist.runs.specs import SVASpec
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.history import History

#: The stop reason of a model that was fitted to a stream of blocks.
_STREAMED = "continues with the next rows of partial_fit"


@documented_by(SVASpec, Manner)
@dataclass(eq=False, repr=False)
class SVA(Clustering[SVASpec]):
    """Dirichlet-process mixture by sequential variational approximation: one pass that opens clusters as it goes.

    Each row's responsibilities are computed under the existing clusters and a new one, and the row is added to their
    statistics. The new cluster is opened if its responsibility exceeds `threshold`. Redundant clusters are merged and
    rare ones pruned at growing intervals (SVA-PM).

    Attributes
    ----------
    n_components_ : int
        Number of clusters, K.
    weights_ : (K,)
        w_k / (alpha + n); ``rest_weight_`` is the weight of clusters not yet seen.
    component_ids_ : (K,) int64
        Stable identities, unchanged by saving and by extension with new data.
    components_ : xarray.Dataset
        Posterior means of the clusters' parameters in raw columns.
    n_features_in_, feature_names_in_ : int, (D,) array of str
        Number of columns, and their names if the data had any.
    rows_seen_ : int
        Number of rows with positive weight that were passed over. If a fit was extended, the sum of the weights of its
        rows stands for their number.
    pruned_weight_ : float
        Total weight of the rows of pruned clusters.
    history_ : xarray.Dataset
        Rows, clusters, seconds and held-out score by round; the score is computed each time the rows grew by 5 %.

    References
    ----------
    D. Lin (2013), "Online learning of nonparametric mixture models via sequential variational approximation", NeurIPS.

    Examples
    --------
    >>> import numpy as np, dpdist
    >>> x = np.random.default_rng(0).permutation(np.repeat([-9.0, 0.0, 9.0], 400))[:, None]
    >>> x = x + np.random.default_rng(1).normal(size=x.shape)
    >>> dpdist.SVA(dpdist.families.IsotropicGaussian(variance=1.0), random_state=0).fit(x).n_components_
    3
    """

    _problem: SVAProblem = field(init=False)
    _fitted: Fitted[SVAState] = field(init=False)
    _spec_type = SVASpec
    _broken_off = _STREAMED

    family: Family | Likelihood | str | None = None
    concentration: float = 1.0
    _: KW_ONLY
    threshold: float = 0.001
    merge: str | MergeTest | None = "auto"
    merge_threshold: float = 0.5
    prune: float = 1e-5
    max_components: int | None = None
    parallel: bool = True
    round_partitions: int = 64
    shuffle: bool = True
    row_transform: TransformPlan | None = None
    compute_dtype: str = "float64"
    floor: float = 1e-6
    forgetting: float = 0.8
    own_clock: bool = True
    random_state: RandomState = 0
    verbose: bool = False

    def fit(
        self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None, holdout: object = None
    ) -> Self:
        """Pass over rows once.

        Parameters
        ----------
        x : (N, D) NumPy array, SciPy sparse matrix, pandas.DataFrame, dask.array, xarray.DataArray, zarr.Array, a path
            to Zarr, or an iterator or dask.bag of (n, D) blocks, which is read once, in order. After a keyboard
            interrupt of such a stream, the model is fitted to the blocks so far
        y : ignored
        sample_weight : (N,) weights, zero or more, optional; not for streams
        holdout : held-out rows whose score is recorded in ``history_``, optional; not for streams

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data or a parameter is invalid.
        """
        blocks = stream_blocks(x)
        if blocks is not None:
            return self._fit_stream(blocks, sample_weight, holdout)
        for _ in self.iter_fit(x, sample_weight=sample_weight, holdout=holdout):
            pass
        return self

    def partial_fit(self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Continue the pass with more rows, in the given order.

        The first call fixes the family, its hyperparameters, the origin and the transform. The parameters that decide
        when clusters are opened, merged and pruned are read at each call. Each call ends, as a pass does, by merging
        redundant clusters, for which all pairs are tested, and pruning rare ones. Therefore give a few thousand rows at
        a time; or give :meth:`fit` an iterator of blocks, which does this once at the end.

        Parameters
        ----------
        x : (n, D) rows in memory, or a source
        y : ignored
        sample_weight : (n,) weights, optional

        Raises
        ------
        InputError
            If the rows do not match the earlier ones, or this is a cut of a model.
        """
        if isinstance(getattr(self, "_predictor", None), Cut):
            raise InputError("a cut cannot be continued; call partial_fit of the original model, and cut it again.")
        problem, running, history = self._advanced(x, sample_weight)
        self._take(problem, last_look(problem, running), history)
        return self

    def _advanced(self, x: object, sample_weight: npt.ArrayLike | None = None) -> tuple[SVAProblem, SVAState, History]:
        """The pass after more rows, without the final merges and pruning; the model is unchanged."""
        goes_on = self.__sklearn_is_fitted__()
        source, backend = self._rows_like_fitted(x, sample_weight), SerialBackend()
        if goes_on:
            spec, running, history = self.spec(), self._fitted.total, self._history
            problem = replace(self._problem, rule=spec.rule, pruning=spec.pruning)
            check_new_rows(problem.preparation, problem.learner, source, backend, "SVA")
        else:
            problem, state = begin_pass(self.spec(), source, backend, stream=True)
            running, history = state.running, History()
        for partition in source.partitions:
            running = advance_block(problem, running, *partition.load())
        return problem, usable(problem, running), history

    def _take(self, problem: SVAProblem, running: SVAState, history: History) -> None:
        """Hold the components of a pass as the model."""
        self.adopt(problem, passed(running, _STREAMED), history, self._chosen)

    def _show(self) -> None:
        super()._show()
        self.rows_seen_, self.pruned_weight_ = self._fitted.total.rows, self._fitted.total.pruned

    def _fit_stream(self, blocks: Iterator[object], sample_weight: npt.ArrayLike | None, holdout: object) -> Self:
        if sample_weight is not None or holdout is not None:
            raise InputError(
                "sample_weight and holdout need data that can be read again; got a stream. Call partial_fit with the "
                "weights of each block, and score between blocks."
            )
        anew = self.__sklearn_clone__()
        try:
            for block in blocks:
                if getattr(block, "shape", (1,))[:1] != (0,):
                    anew._take(*anew._advanced(block))
        except KeyboardInterrupt:  # the stream may not be repeatable, so keep its clusters; partial_fit can continue
            if anew.__sklearn_is_fitted__():
                self.adopt(anew._problem, anew._fitted, anew._history, anew._chosen)
            raise
        if not anew.__sklearn_is_fitted__():
            raise InputError("a pass needs at least one row; the stream had none. Check its source.")
        anew._take(anew._problem, last_look(anew._problem, anew._fitted.total), anew._history)
        self.adopt(anew._problem, anew._fitted, anew._history, anew._chosen)
        return self
