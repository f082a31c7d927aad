"""Set-up shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dpdist", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("dpdist")

_SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_path(*parts: str) -> Path:
    """A file of the shared data beside the repository; the test is skipped, saying so, where it is absent."""
    path = _SHARED.joinpath(*parts)
    if not path.exists():
        reason = f"needs {'/'.join(('shared', *parts))} beside the repository"
        if os.environ.get("DPDIST_REQUIRE_SHARED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
