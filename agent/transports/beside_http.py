"""What transports have in common that carry only some requests themselves: the rest is an `http` transport's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from ..wire import Limits, Live, Reply, SyncBody, WireRequest
from .http import HttpTransport

if TYPE_CHECKING:
    import ssl


class BesideHttp:
    """Has the settings of an `http` transport (whom to trust, which proxy to take), and its blocking face."""

    def __init__(
        self,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | bool | None = None,
    ) -> None:
        self._stand_beside(HttpTransport(ca_file=ca_file, ssl_context=ssl_context, proxy=proxy))

    def _stand_beside(self, http: HttpTransport) -> None:
        self._http = http

    @classmethod
    def beside(cls, http: HttpTransport) -> Self:
        """One with the settings and the blocking connections of another transport."""
        made = cls.__new__(cls)
        made._stand_beside(http)
        return made

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy's URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; make one in the other process")

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        return self._http.send(request, limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        return self._http.open(request, limits, live)

    def close(self) -> None:
        """Close idle connections of blocking calls. Those of event loops close with their loop."""
        self._http.close()
