"""A client whose commands are repeated while a server is being replaced."""

from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis.client import Pipeline

from ..server.connections.kept import SlotMovedError

#: Calls a function with no arguments until it raises no error of a lost connection.
Repeat = Callable[[Callable[[], Any]], Any]

#: Commands that count: one whose reply is lost may have counted already.
_COUNT = {"INCR", "INCRBY", "RPUSH"}

#: How often such a command is sent again that a node refused unread: once for each connection to a former owner.
_MOVES = 20


class RepeatedClient(redis.Redis):
    """Commands, and pipelines, that *repeat* calls; those that count only while nodes refuse them unread."""

    def __init__(self, repeat: Repeat, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._repeat = repeat

    def execute_command(self, *args: Any, **options: Any) -> Any:
        execute = super().execute_command
        return self.repeated([args[0]], lambda: execute(*args, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _RepeatedPipeline(self, transaction, shard_hint)

    def repeated(self, names: Iterable[str], call: Callable[[], Any]) -> Any:
        """Call *call*, which sends the commands *names*, as often as it may be."""
        if _COUNT.isdisjoint(names):
            return self._repeat(call)
        for _ in range(_MOVES):
            try:
                return call()
            except SlotMovedError:
                continue  # the next connection leads to where the keys are
        return call()


class _RepeatedPipeline(Pipeline):
    def __init__(self, client: RepeatedClient, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> Any:
        commands = list(self.command_stack)
        execute = super().execute

        def call() -> Any:
            self.command_stack = list(commands)  # which an attempt forgets
            return execute(raise_on_error)

        return self._client.repeated([each[0][0] for each in commands], call)
