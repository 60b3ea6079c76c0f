"""A Redis server as its clients see it: RESP over the simulated net, TTLs in virtual time.

It knows the commands of `redis_commands` and those of a connection, and answers all others like a
server that does not; test_redis_model holds it against a real one. Faults are attributes; a dead,
stopped or unreachable server is the net's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.sim.conn import Conn, Receiver
from tests.sim.net import Net
from tests.sim.redis_commands import DATA_COMMANDS, NOT_AN_INTEGER, SYNTAX, Args, Keyspace, Value
from tests.sim.resp import OK, Error, ProtocolError, Reply, RequestParser, Status, encode

READ_ONLY: Final = Error("READONLY You can't write against a read only replica.")
FULL: Final = Error("OOM command not allowed when used memory > 'maxmemory'.")
ABORTED: Final = Error("EXECABORT Transaction discarded because of previous errors.")
NO_PASSWORD: Final = Error(
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
WRONG_PASSWORD: Final = Error("WRONGPASS invalid username-password pair or user is disabled.")
NUM_DBS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A command as it was executed."""

    at: float
    host: str
    """Of the client."""
    args: tuple[bytes, ...]
    reply: Reply
    """Before any mixing."""


class RedisModel:
    """The server; it listens at once.

    Args:
        host: where, with `port`.
    """

    def __init__(self, net: Net, host: str = "redis", port: int = 6379) -> None:
        self.slow_s = 0.0
        """How late replies leave; commands are executed at once."""
        self.readonly = False
        self.full = False
        """No memory is left."""
        self.num_mixed = 0
        """How many of the next GETs get the reply to an earlier one for another key."""
        self.commands: list[Executed] = []
        self.spaces = [Keyspace(net.loop.time) for _ in range(NUM_DBS)]
        self.net = net
        self._address = (host, port)
        self._last_get: tuple[bytes, Reply] | None = None
        self.start()

    def start(self) -> None:
        """Listens, again after its host was killed, with the data it had."""
        self.net.listen(*self._address, self._accept)

    def flush(self) -> None:
        """Loses all data."""
        for space in self.spaces:
            space.clear()

    def keys(self) -> list[tuple[bytes, float | None]]:
        """Returns the keys of database 0, and for how many seconds each will live."""
        now = self.spaces[0].now_ms()
        return [
            (key, None if entry.expires_ms is None else (entry.expires_ms - now) / 1000)
            for key, entry in self.spaces[0].live().items()
        ]

    def value(self, key: bytes) -> Value | None:
        """Returns what database 0 holds under a key."""
        entry = self.spaces[0].get(key)
        return None if entry is None else entry.value

    def corrupt(self, key: bytes, value: Value = b"\xff\x00not a record") -> None:
        """Puts something else in the place of a value; its time to live stays."""
        entry = self.spaces[0].get(key)
        if entry is not None:
            entry.value = value

    def note(self, host: str, args: Args, reply: Reply) -> Reply:
        """Remembers an executed command; returns the reply that leaves."""
        at = self.net.loop.time()
        self.commands.append(Executed(at=at, host=host, args=tuple(args), reply=reply))
        if args[0].lower() != b"get":
            return reply
        last, self._last_get = self._last_get, (args[1], reply)
        if not self.num_mixed or last is None or last[0] == args[1]:
            return reply
        self.num_mixed -= 1
        return last[1]

    def _accept(self, conn: Conn) -> None:
        conn.attach(_Client(self, conn))


class _Client(Receiver):
    """One connection."""

    def __init__(self, model: RedisModel, conn: Conn) -> None:
        self._model = model
        self._conn = conn
        self._parser = RequestParser()
        self._version = 2
        self._db = 0
        self._queue: list[Args] | None = None
        self._spoiled = False
        self._last_reply_at = 0.0

    def on_data(self, data: bytes) -> None:
        try:
            requests = self._parser.feed(data)
        except ProtocolError as error:
            self._reply(b"-ERR Protocol error: %s\r\n" % str(error).encode())
            self._conn.close()
            return
        replies = []
        for args in requests:
            reply = self._answer(args)
            replies.append(encode(reply, self._version))
        if replies:
            self._reply(b"".join(replies))
        if requests and requests[-1][0].lower() == b"quit":
            self._conn.close()

    def on_eof(self) -> None:
        self._conn.close()

    def _reply(self, data: bytes) -> None:
        loop = self._model.net.loop
        self._last_reply_at = max(self._last_reply_at, loop.time() + self._model.slow_s)
        if self._last_reply_at <= loop.time():
            self._push(data)
        else:
            loop.call_at(self._last_reply_at, self._push, data)

    def _push(self, data: bytes) -> None:
        if not self._conn.is_over:
            self._conn.push(data)

    def _answer(self, args: Args) -> Reply:
        name = args[0].decode("latin-1").lower()
        refusal = self._refusal(name, args)
        if refusal is not None:
            self._spoiled = True
            return refusal
        if self._queue is not None and name not in _UNQUEUED:
            self._queue.append(args)
            return Status("QUEUED")
        return self._run(name, args)

    def _refusal(self, name: str, args: Args) -> Error | None:
        if (data := DATA_COMMANDS.get(name)) is not None:
            arity = data.arity
        elif name in _CONNECTION_COMMANDS:
            arity = _CONNECTION_COMMANDS[name][0]
        else:
            given = "".join(f"'{a.decode('latin-1')}' " for a in args[1:])
            called = args[0].decode("latin-1")
            return Error(f"ERR unknown command '{called}', with args beginning with: {given}")
        if len(args) != arity and (arity > 0 or len(args) < -arity):
            return Error(f"ERR wrong number of arguments for '{name}' command")
        if name == "multi" and self._queue is not None:
            return Error("ERR Command 'multi' not allowed inside a transaction")
        if self._model.full and data is not None and data.grows:
            return FULL
        writes = name == "flushall" or (data is not None and data.writes)
        return READ_ONLY if self._model.readonly and writes else None

    def _run(self, name: str, args: Args) -> Reply:
        if (data := DATA_COMMANDS.get(name)) is not None:
            reply = data.run(self._model.spaces[self._db], args[1:])
            return self._model.note(self._conn.remote, args, reply)
        return _CONNECTION_COMMANDS[name][1](self, args[1:])

    def hello(self, args: Args) -> Reply:
        rest = list(args)
        version = self._version
        if rest:
            if rest[0] not in (b"2", b"3"):
                return Error("NOPROTO unsupported protocol version")
            version = int(rest.pop(0))
        while rest:
            option = rest.pop(0).lower()
            if option == b"auth" and len(rest) >= 2:
                if (refused := self.auth((rest.pop(0), rest.pop(0)))) != OK:
                    return refused
            elif option == b"setname" and rest:
                rest.pop(0)
            else:
                return Error(f"ERR Syntax error in HELLO option '{option.decode('latin-1')}'")
        self._version = version
        return {
            b"server": b"valkey",
            b"version": b"9.1.2",
            b"proto": version,
            b"id": 1,
            b"mode": b"standalone",
            b"role": b"replica" if self._model.readonly else b"master",
            b"modules": [],
        }

    def auth(self, args: Args) -> Reply:
        if len(args) > 2:
            return SYNTAX
        if len(args) == 1:
            return NO_PASSWORD
        return OK if args[0] == b"default" else WRONG_PASSWORD

    def select(self, args: Args) -> Reply:
        if not args[0].isdigit():
            return NOT_AN_INTEGER
        if int(args[0]) >= NUM_DBS:
            return Error("ERR DB index is out of range")
        self._db = int(args[0])
        return OK

    def client(self, args: Args) -> Reply:
        if args[0].lower() in (b"setinfo", b"setname"):
            return OK
        name = args[0].decode("latin-1")
        return Error(f"ERR unknown subcommand '{name}'. Try CLIENT HELP.")

    def ping(self, args: Args) -> Reply:
        if len(args) > 1:
            return Error("ERR wrong number of arguments for 'ping' command")
        return args[0] if args else Status("PONG")

    def flushall(self, args: Args) -> Reply:
        if args and args[0].lower() not in (b"sync", b"async"):
            return SYNTAX
        self._model.flush()
        return self._model.note(self._conn.remote, (b"FLUSHALL", *args), OK)

    def multi(self, args: Args) -> Reply:
        self._queue, self._spoiled = [], False
        return OK

    def execute(self, args: Args) -> Reply:
        queue, self._queue = self._queue, None
        if queue is None:
            return Error("ERR EXEC without MULTI")
        if self._spoiled:
            return ABORTED
        return [self._run(q[0].decode("latin-1").lower(), q) for q in queue]

    def discard(self, args: Args) -> Reply:
        queue, self._queue = self._queue, None
        return Error("ERR DISCARD without MULTI") if queue is None else OK

    def quit(self, args: Args) -> Reply:
        return OK


_UNQUEUED: Final = ("exec", "discard", "quit")
_CONNECTION_COMMANDS: Final[dict[str, tuple[int, Callable[[_Client, Args], Reply]]]] = {
    "hello": (-1, _Client.hello),
    "auth": (-2, _Client.auth),
    "select": (2, _Client.select),
    "client": (-2, _Client.client),
    "ping": (-1, _Client.ping),
    "flushall": (-1, _Client.flushall),
    "multi": (1, _Client.multi),
    "exec": (1, _Client.execute),
    "discard": (1, _Client.discard),
    "quit": (-1, _Client.quit),
}
