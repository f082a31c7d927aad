"""Errors whose text is a sentence for the person who reads it: what was expected, what came, what to do."""


class DpdistError(Exception):
    """Base of every error raised on purpose by dpdist."""


class InputError(DpdistError, ValueError):
    """Data, a parameter or a file is not what was asked for."""


class PrecisionError(DpdistError, ArithmeticError):
    """A number could not be computed to the precision the result needs."""


class CheckpointError(DpdistError, RuntimeError):
    """A checkpoint is missing, of another run, or of a newer format."""


class OutputExistsError(DpdistError, FileExistsError):
    """An output path is taken and overwriting was not asked for."""
