"""Redis session store: shared between processes and machines."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappush, heappushpop
from secrets import token_hex
from time import monotonic
from typing import Any, Self, TypeAlias

from typing_extensions import override

from ..errors import ConfigurationError, printable
from ..types import freeze
from .base import (
    ConflictError,
    CorruptStoreError,
    NodeRow,
    Row,
    SearchHit,
    SessionNotFoundError,
    SessionRecord,
    StoreError,
    StoreUnavailableError,
    check_encodable,
    check_limit,
    check_session_id,
    encode_object,
    read_rows,
    select_new_rows,
)
from .redis_client import TIMEOUTS, RedisClient, check_namespace, convert_redis_error
from .redis_connections import FAILURES, RedisScript
from .search import SearchTerms, extract_text

_PAGE = 100
"""Sessions that a search reads at once."""
_MOST = 2**53
"""Close to the maximum of integers in Lua."""
Fields: TypeAlias = Sequence[bytes | None]

# Keys of one store have one hash tag, so that they are on one node of a cluster.
#   i         sorted set: session id -> time of its latest change
#   s:<id>    hash: token (changes with each version), version, nodes, created, updated, header, checksum
#   r:<id>    sorted set: rows, by version and place      n:<id>    hash: node id -> place
_COMMON = """
local prefix = string.sub(KEYS[1], 1, -2)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function read_session(id)
  return redis.call('HMGET', prefix .. 's:' .. id,
    'token', 'version', 'nodes', 'created', 'updated', 'header', 'checksum')
end

local function remove_if_expired(id)
  if redis.call('EXISTS', prefix .. 's:' .. id) == 0 then redis.pcall('ZREM', KEYS[1], id) end
end
"""

# id, number of row ids, row ids, other ids of nodes
_LOOK = RedisScript(
    _COMMON
    + """
local id, places, rows = ARGV[1], {}, {}
for index = 3, #ARGV do
  local place = redis.call('HGET', prefix .. 'n:' .. id, ARGV[index])
  places[index - 2] = place
  if index - 2 <= tonumber(ARGV[2]) then
    rows[index - 2] = place and (redis.call('ZRANGE', prefix .. 'r:' .. id, place, place)[1] or '')
  end
end
return {now, read_session(id), places, rows}
"""
)

# id, current token or '', new token, deadline, lifetime or 0, seven fields, then node ids and rows
_CHANGE = RedisScript(
    _COMMON
    + """
local id = ARGV[1]
local session, rows, places = prefix .. 's:' .. id, prefix .. 'r:' .. id, prefix .. 'n:' .. id
local token = redis.call('HGET', session, 'token') or ''
if token == ARGV[3] then return {'done'} end
if now > tonumber(ARGV[4]) then return {'late'} end
if token ~= ARGV[2] then return {'conflict', redis.call('HGET', session, 'version') or ''} end
local version, count = ARGV[6], (#ARGV - 11) / 2
redis.call('HSET', session, 'token', ARGV[3], 'version', version, 'nodes', ARGV[7], 'created', ARGV[8],
  'updated', ARGV[9], 'header', ARGV[10], 'checksum', ARGV[11])  -- first: a full server refuses only the first write
if token == '' then redis.call('DEL', rows, places) end
for index = 0, count - 1 do
  redis.call('HSET', places, ARGV[12 + 2 * index], string.format('%.0f', ARGV[7] - count + index))
  redis.call('ZADD', rows, version, ARGV[13 + 2 * index])
end
redis.call('ZADD', KEYS[1], ARGV[9], id)
for _, key in ipairs({session, rows, places}) do
  if ARGV[5] == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ARGV[5]) end
end
for _, oldest in ipairs(redis.call('ZRANGE', KEYS[1], 0, 1)) do remove_if_expired(oldest) end
return {'done'}
"""
)

# id, deadline
_DELETE = RedisScript(
    _COMMON
    + """
if now > tonumber(ARGV[2]) then return 'late' end
redis.call('DEL', prefix .. 's:' .. ARGV[1], prefix .. 'r:' .. ARGV[1], prefix .. 'n:' .. ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
return 'done'
"""
)

# id, version
_LOAD = RedisScript(
    _COMMON
    + """
return {read_session(ARGV[1]), redis.call('ZRANGEBYSCORE', prefix .. 'r:' .. ARGV[1], '(' .. ARGV[2], '+inf')}
"""
)

# latest time or '+inf', number of sessions besides those of exactly that time; returns id, time and fields of each
_LIST = RedisScript(
    _COMMON
    + """
local latest, count, found, expired = ARGV[1], tonumber(ARGV[2]), {}, {}
if latest ~= '+inf' then count = count + redis.call('ZCOUNT', KEYS[1], latest, latest) end
local offset, page = 0, nil
repeat
  page = redis.call('ZREVRANGEBYSCORE', KEYS[1], latest, '-inf', 'WITHSCORES', 'LIMIT', offset, 100)
  for index = 1, #page, 2 do
    local session = read_session(page[index])
    if not session[1] then
      expired[#expired + 1] = page[index]
    elseif #found < count then
      found[#found + 1] = {page[index], page[index + 1], session}
    end
  end
  offset = offset + 100
until #page == 0 or #found >= count
for _, id in ipairs(expired) do remove_if_expired(id) end
return found
"""
)

_CHECK = RedisScript("return redis.call('INFO', 'memory')")


@dataclass(frozen=True)
class _StoredSession:
    """A session and the token of its latest change."""

    token: str
    record: SessionRecord


class RedisStore:
    """Store that keeps sessions in Redis (7 or later) or Valkey, for processes on several machines.

    A change is one script, which applies as a whole or not at all. How durable it is depends on the server's
    settings for persistence and replication.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        name: Name of the store; each name has its own sessions.
        expire_after: Seconds after its latest change until a session is deleted; None keeps sessions.
        timeout: Seconds after which a request fails with `StoreUnavailableError`, connecting included.
    """

    blocking = True

    def __init__(
        self, url: str, *, name: str = "sessions", expire_after: float | None = None, timeout: float = 5.0
    ) -> None:
        check_namespace(name)
        if expire_after is not None and not expire_after > 0:
            raise ConfigurationError(
                f"expire_after is {expire_after}.", field="expire_after", fix="Use seconds above 0, or leave it out."
            )
        self._url, self._name, self._timeout = url, name, timeout
        self._expire_after = expire_after
        self._key = f"agent:{{store:{name}}}:i"
        self._client = RedisClient(url, timeout, [_LOOK, _CHANGE, _LOAD])
        self._check_eviction()  # report problems here, not during a conversation

    @override
    def __reduce__(self) -> Any:
        rebuild = partial(RedisStore, name=self._name, expire_after=self._expire_after, timeout=self._timeout)
        return rebuild, (self._url,)

    @override
    @printable
    def __repr__(self) -> str:
        return f"RedisStore(name={self._name!r})"  # the URL may hold a password

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def create(
        self,
        session_id: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rows: Sequence[NodeRow] = (),
        heads: Sequence[str] = (),
    ) -> SessionRecord:
        return self._change(session_id, None, rows, heads, title, metadata or {})

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        fields, rows = self._run(_LOAD, session_id, max(0, min(since, _MOST)))
        session = _read_session(session_id, fields)
        if session is None:
            raise SessionNotFoundError(session_id=session_id)
        record = session.record
        first = 0 if since < 1 else record.node_count - len(rows)
        return replace(record, nodes=tuple(node for _, node in _read_rows(record, rows, first)))

    def append(
        self,
        session_id: str,
        rows: Sequence[NodeRow],
        *,
        heads: Sequence[str],
        expected_version: int,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        return self._change(session_id, expected_version, rows, heads, title, metadata).version

    def update(
        self,
        session_id: str,
        *,
        expected_version: int,
        heads: Sequence[str] | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        return self._change(session_id, expected_version, (), heads, title, metadata).version

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        last = None if before is None else (before.updated_at, before.id)
        return [
            session.record
            for session_id, _, fields in self._select_page(limit, last)
            if (session := _read_session(session_id, fields)) is not None
        ]

    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Find nodes with all words of `text`, newest first. Reads all sessions that can contain newer nodes."""
        check_limit(limit)
        words = SearchTerms(text)
        hits: list[tuple[int, int, str, SearchHit]] = []
        """Heap of the newest hits, with time and place."""
        for session in self._iterate_sessions() if words else ():
            if len(hits) == limit and session.updated_at * 1e6 < hits[0][0] - 1:
                break  # the rest was changed earlier
            _, rows = self._run(_LOAD, session.id, 0)
            try:
                nodes = _read_rows(session, rows[: session.node_count], 0)
            except StoreError:
                continue  # damaged sessions are reported when they are loaded
            for place, (time, node) in enumerate(nodes):
                node_text = extract_text(node)
                if words.are_in(node_text):
                    hit = SearchHit(session.id, session.title, node["id"], words.excerpt(node_text))
                    entry = (time, place, session.id, hit)
                    if len(hits) < limit:
                        heappush(hits, entry)
                    else:
                        heappushpop(hits, entry)
        return [hit for *_, hit in sorted(hits, reverse=True)]

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)
        started = monotonic()
        now, fields, *_ = self._run(_LOOK, session_id, 0)
        if fields[0] is None:
            raise SessionNotFoundError(session_id=session_id)
        if self._run(_DELETE, session_id, self._deadline(now, started)) == b"late":
            raise _late_error()

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        self._client.close()

    # Changes

    def _change(
        self,
        session_id: str,
        expected_version: int | None,
        rows: Sequence[NodeRow],
        heads: Sequence[str] | None,
        title: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> SessionRecord:
        """Create a session, or change that of the expected version. None keeps a value."""
        check_session_id(session_id)
        read, started = read_rows(rows), monotonic()
        check_encodable("heads", *(heads or ()))
        row_ids = list(dict.fromkeys(row.id for row in read))
        ids = [*row_ids, *dict.fromkeys([*(heads or ()), *(parent for row in read for parent in row.parents)])]
        now, fields, places, texts = self._run(_LOOK, session_id, len(row_ids), *ids)
        session = _read_session(session_id, fields)
        _check_version(session_id, session, expected_version)
        if session is None:
            session = _StoredSession("", SessionRecord(session_id, version=0, created_at=now / 1e6))
            places = texts = []
        old = session.record
        known = {id for id, place in zip(ids, places, strict=False) if place is not None}
        stored = {id: _split_row(old.id, row)[-1] for id, row in zip(row_ids, texts, strict=False) if row is not None}
        new_heads = old.heads if heads is None else tuple(heads)
        fresh = select_new_rows(read, () if heads is None else heads, known=known.__contains__, text=stored.get)
        header = encode_object(
            "The metadata",
            {
                "title": old.title if title is None else title,
                "heads": list(new_heads),
                "metadata": old.metadata if metadata is None else dict(metadata),
            },
        )
        new = replace(
            _with_header(old, header),
            version=old.version + 1,
            updated_at=max(now / 1e6, old.updated_at),
            node_count=old.node_count + len(fresh),
        )
        facts = [str(new.version), str(new.node_count), repr(new.created_at), repr(new.updated_at), header]
        lifetime = 0 if self._expire_after is None else max(1, round(self._expire_after * 1000))
        outcome, *actual = self._run(
            _CHANGE, session_id, session.token, token_hex(8), self._deadline(now, started), lifetime,
            *facts, _checksum(session_id, *facts), *_encode_rows(new, fresh),
        )  # fmt: skip
        if outcome == b"late":
            raise _late_error()
        if outcome == b"conflict":
            if not actual[0] and expected_version is not None:
                raise SessionNotFoundError(session_id=session_id)
            raise ConflictError(session_id=session_id, expected=expected_version or 0, actual=int(actual[0] or 0))
        return new

    def _deadline(self, now: int, started: float) -> int:
        """Return the server's time from which on it must not make a change, because the caller has given up."""
        return now + round((self._timeout - (monotonic() - started)) * 1e6)

    # Reading

    def _select_page(self, limit: int, before: tuple[float, str] | None) -> Sequence[tuple[str, float, Fields]]:
        """Return id, time of the latest change, and fields of the next sessions."""
        latest = "+inf" if before is None else repr(before[0])
        page = [(id.decode(), float(time), fields) for id, time, fields in self._run(_LIST, latest, min(limit, _MOST))]
        return [one for one in page if before is None or (one[1], one[0]) < before][:limit]

    def _iterate_sessions(self) -> Iterator[SessionRecord]:
        """Yield all intact sessions, most recently changed first."""
        last: tuple[float, str] | None = None
        while page := self._select_page(_PAGE, last):
            for session_id, _, fields in page:
                with suppress(CorruptStoreError):
                    session = _read_session(session_id, fields)
                    if session is not None:
                        yield session.record
            last = page[-1][1], page[-1][0]

    def _run(self, script: RedisScript, *arguments: str | int) -> Any:
        """Run a script. It is run again if the connection broke: scripts have the same effect once and twice."""
        try:
            return self._client.run(script, self._key, *arguments)
        except FAILURES as error:
            first = convert_redis_error(error)
            if not isinstance(first, StoreUnavailableError) or isinstance(error, TIMEOUTS):
                raise first from error
        try:
            return self._client.run(script, self._key, *arguments)
        except FAILURES as error:
            raise convert_redis_error(error) from error

    def _check_eviction(self) -> None:
        """Refuse a server that deletes sessions when its memory is full."""
        try:
            info = dict(line.partition(":")[::2] for line in self._run(_CHECK).decode().splitlines())
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if error.code == "ERR" or error.code == "NOPERM":
                return  # some services do not allow INFO
            raise
        policy = info.get("maxmemory_policy", "noeviction")
        evicts = policy.startswith("allkeys") or (policy.startswith("volatile") and self._expire_after is not None)
        if evicts and info.get("maxmemory", "0") != "0":
            raise ConfigurationError(
                f"Redis deletes sessions when its memory is full: its maxmemory-policy is {policy}.",
                field="url",
                fix="Use a server with maxmemory-policy noeviction.",
            )


def _check_version(session_id: str, session: _StoredSession | None, expected: int | None) -> None:
    """Check that the session has the expected version; None expects no session."""
    if session is None and expected is not None:
        raise SessionNotFoundError(session_id=session_id)
    if session is not None and session.record.version != expected:
        raise ConflictError(session_id=session_id, expected=expected or 0, actual=session.record.version)


def _read_session(session_id: str, fields: Fields) -> _StoredSession | None:
    """Decode the fields of a session; None if there are none."""
    if fields[0] is None:
        return None
    token, *facts, checksum = fields
    texts = [(fact or b"").decode("utf-8", "replace") for fact in facts]
    if checksum != str(_checksum(session_id, *texts)).encode():
        raise CorruptStoreError(f"Session {session_id!r} is damaged.")
    version, nodes, created, updated, header = texts
    record = SessionRecord(
        session_id,
        version=int(version),
        node_count=int(nodes),
        created_at=float(created),
        updated_at=float(updated),
    )
    return _StoredSession((token or b"").decode(), _with_header(record, header))


def _with_header(record: SessionRecord, header: str) -> SessionRecord:
    fields = json.loads(header)
    return replace(record, title=fields["title"], heads=tuple(fields["heads"]), metadata=freeze(fields["metadata"]))


def _encode_rows(record: SessionRecord, rows: Sequence[Row]) -> Iterable[str]:
    """Yield the id and the stored form of each row: place, version, time in µs, checksum and JSON."""
    for place, row in enumerate(rows, record.node_count - len(rows)):
        facts = f"{place:012d} {record.version} {round(record.updated_at * 1e6)}"
        yield row.id
        yield f"{facts} {_checksum(record.id, *facts.split(), row.text)} {row.text}"


def _split_row(session_id: str, row: bytes) -> tuple[int, int, str]:
    """Return place, time and JSON of a stored row, after checking its checksum."""
    try:
        place, version, time, checksum, text = row.decode().split(" ", 4)
        if checksum == str(_checksum(session_id, place, version, time, text)):
            return int(place), int(time), text
    except ValueError:
        pass
    raise CorruptStoreError(f"Session {session_id!r} is damaged: a node has a wrong checksum.")


def _read_rows(record: SessionRecord, rows: Sequence[bytes], first: int) -> list[tuple[int, NodeRow]]:
    """Decode rows and their times. Their places must be all from `first` on."""
    split = [_split_row(record.id, row) for row in rows]
    if [place for place, _, _ in split] != list(range(first, record.node_count)):
        raise CorruptStoreError(f"Session {record.id!r} is damaged: nodes are missing.")
    try:
        return [(time, json.loads(text)) for _, time, text in split]
    except RecursionError:
        raise StoreError(f"A node of session {record.id!r} is nested too deeply to read.") from None


def _checksum(*facts: str) -> int:
    return zlib.crc32("\n".join(facts).encode())


def _late_error() -> StoreUnavailableError:
    return StoreUnavailableError("Redis was too slow. Nothing was changed.")
