"""moto's server with conditional puts that are atomic, as S3's are; takes moto_server's arguments.

moto looks whether there is an object, then writes it, and between the two another of its threads may do the same.
"""

from __future__ import annotations

import functools
import threading

from moto.s3.responses import S3Response
from moto.server import main

LOCK = threading.Lock()


def one_at_a_time(put):
    """The method, of which no two calls overlap."""

    @functools.wraps(put)
    def guarded(response):
        with LOCK:
            return put(response)

    return guarded


if __name__ == "__main__":
    S3Response.put_object = one_at_a_time(S3Response.put_object)
    main()
