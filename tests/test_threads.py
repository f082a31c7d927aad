"""One BLAS thread within the numerical steps, whichever threads of the process are at them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpdist.core.threads import one_thread


def blas_threads() -> set[int]:
    """Threads of every BLAS of this process."""
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Every BLAS has two threads where nobody says otherwise."""
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield


def test_within_there_is_one_and_afterwards_as_many_as_before() -> None:
    with one_thread():
        assert blas_threads() == {1}
        with one_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_an_error_gives_them_back() -> None:
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert blas_threads() == {2}


def test_whoever_leaves_first_others_stay_at_one_and_the_last_gives_them_back() -> None:
    """A enters, B enters, A leaves, B looks and leaves."""
    both, left, seen = threading.Barrier(2), threading.Event(), list[set[int]]()

    def first() -> None:
        with one_thread():
            both.wait()
        left.set()

    def second() -> None:
        with one_thread():
            both.wait()
            left.wait()
            seen.append(blas_threads())

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{1}] and blas_threads() == {2}


def test_another_thread_than_the_one_that_decided_last_is_heard() -> None:
    seen = list[set[int]]()

    def within() -> None:
        with one_thread():
            seen.append(blas_threads())

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert seen == [{1}] and blas_threads() == {2}
