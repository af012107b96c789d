"""TLS over the bare asyncio protocol of `asyncio_sockets`.

asyncio's own TLS takes 256 kB per connection, idle or not, and two more layers of calls per record.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from typing_extensions import override

from .asyncio_sockets import AioSocket, wake

_AT_A_TIME = 64 * 1024
"""Encrypted before the system must take it: a long request is not in memory twice."""


class TlsSocket(AioSocket):
    """A TLS connection. Nothing may be sent or received before `shake`."""

    __slots__ = ("_incoming", "_outgoing", "_shaken", "_tls")

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._shaken = False

    async def shake(self) -> None:
        """Perform the handshake. Raises what is wrong with the other side."""
        self._go_on_shaking()
        while not self._shaken:
            if self.error is not None:
                try:
                    raise self.error
                finally:
                    self.error = None  # or the error's frames and this connection keep each other alive
            if self.ended:
                raise OSError("the server closed the connection during the TLS handshake")
            await self._news()

    def _go_on_shaking(self) -> None:
        try:
            self._tls.do_handshake()
            self._shaken = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._broken(error)
        self._flush()

    async def _news(self) -> None:
        self.reader = self.loop.create_future()
        try:
            await self.reader
        finally:
            self.reader = None

    # For the loop

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self.buffer[:nbytes])
        if not self._shaken:
            self._go_on_shaking()
        if self._shaken:  # what followed the handshake may have come with it
            self._decrypt()
        wake(self.reader)

    def _decrypt(self) -> None:
        try:
            while data := self._tls.read(len(self.buffer)):
                self._keep(data)
            self.ended = True  # the other side has said that there is no more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self._broken(error)
        if self._outgoing.pending:
            self._flush()

    def _broken(self, error: ssl.SSLError) -> None:
        self.error = error.with_traceback(None)  # whose frames would hold this connection, in a cycle
        self.ended = True

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    # For the pool

    @override
    async def send(self, data: memoryview) -> None:
        for start in range(0, len(data), _AT_A_TIME):
            await self._send_piece(data[start : start + _AT_A_TIME])

    async def _send_piece(self, data: memoryview) -> None:
        while data:
            if self.error is not None or self.transport.is_closing():
                raise OSError("the connection is lost")
            try:
                data = data[self._tls.write(data) :]
            except ssl.SSLWantReadError:  # the other side wants new keys before it reads on
                self._flush()
                if self.ended:
                    raise OSError("the connection is lost") from None
                await self._news()
            except ssl.SSLError as error:
                raise OSError(str(error)) from None
        self._flush()
        if self.writer is not None:
            await self.writer


async def connect_tls(connected: socket.socket, context: ssl.SSLContext, name: str) -> TlsSocket:
    """Speak TLS over a connected socket."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: TlsSocket(context, name), sock=connected)
    try:
        await connection.shake()
    except BaseException:
        connection.close()
        raise
    return connection
