"""Errors whose text is a sentence for the person who reads it: what was expected, what came, what to do."""


class DpdistError(Exception):
    """Base of every error raised on purpose by dpdist."""


class InputError(DpdistError, ValueError):
    """Data, a parameter or a file is not what was asked for."""


class InputKindError(InputError, TypeError):
    """Data are of a kind that is no number at all."""


class CorruptDataError(DpdistError, ValueError):
    """Stored rows are damaged or missing, so that what would be read is not what was written."""


class PrecisionError(DpdistError, ArithmeticError):
    """A number could not be computed to the precision the result needs."""


class CheckpointError(DpdistError, RuntimeError):
    """A checkpoint is missing, of another run, or of a newer format."""


class OutputExistsError(DpdistError, FileExistsError):
    """An output path is taken and overwriting was not asked for."""


class ClusterError(DpdistError, RuntimeError):
    """The cluster did not finish a task, however often it was begun."""


class ClusterLostError(ClusterError):
    """The cluster is gone, or no worker came back; the coordinator's state is whole and can go on with another."""
