"""Functions and commands for a server, many in one round trip. Their replies are read later."""

import re

import redis

from celery_affinity.broker.client import take_connection
from celery_affinity.lab.scripts_engine import CLOCKED, at_fake_time
from celery_affinity.lua.library import function_call, library_of

from .mirror import LONGER, READ_ALL

#: Limit of message bytes per invocation, small enough to be reached.
FEW_BYTES = 2_500


def _with_few_bytes(text):
    found = text.replace("protocol.MAX_BYTES = 1000000\n", f"protocol.MAX_BYTES = {FEW_BYTES}\n")
    assert found != text
    return found


#: The expiry times in a script: the rest of an EXPIRE, the option of a SET, and the divisor that converts a PTTL to
#: seconds.
_SECONDS = re.compile(
    r'(?<="EX", )[\w.]+'
    r'|(?<="PTTL", key\.revoked\(task\)\) / )1000'
    r'|"EXPIRE", (?P<key>[\w.]+(?:\([^()]*\))?), (?P<kept>.*?)(?P<flag>(?:, "GT")?)\)(?P<after>(?: == 1| -- .*)?)$',
    re.MULTILINE,
)


def _longer(found):
    if found["key"]:
        return f'"EXPIRE", {found["key"]}, ({found["kept"]}) * {LONGER}{found["flag"]}){found["after"]}'
    return f"({found[0]} * {LONGER})"


def _kept_longer(text):
    found, number = _SECONDS.subn(_longer, text)
    assert number == len(re.findall(r'"EXPIRE"|"EX"|"PTTL".* / ', text))
    return found


def for_walks(library):
    return library.changed(_with_few_bytes).changed(_kept_longer)


LIBRARY = for_walks(CLOCKED)


def walked(text):
    """Return the test library of the text that `library.assembled` returned."""
    return for_walks(library_of(text).changed(at_fake_time))


class Wire:
    """One connection to a server, without a client's expensive handling of lost connections, because none is lost here.

    *by_script*: True to call functions as on a server that refuses them. *library*: perhaps a mutant.
    """

    def __init__(self, client, *, by_script=False, library=LIBRARY):
        self._pool = client.connection_pool
        self._connection = take_connection(self._pool)
        self._way = library.by_script if by_script else library.by_function
        if by_script:
            for name in ("publish", "release"):  # one that claims jobs, and another one
                client.execute_command(*self._way.loading(name))
        elif not client.function_list(library.name):
            client.execute_command(*self._way.loading("publish"))
        self._read_all = client.script_load(READ_ALL)
        self._queue, self._awaited = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.disconnect()  # the connection may contain unread replies
        self._pool.release(self._connection)

    def add(self, *command):
        self._queue.append(command)

    def add_script(self, name, base, rest, values):
        self._queue.append(self._way.command(name, base, function_call(name, rest, **values)[1]))

    def read_state(self):
        self.add("EVALSHA", self._read_all, 0)

    def send(self):
        """Send the added commands. The server works from here on."""
        self._connection.send_packed_command(self._connection.pack_commands(self._queue))
        self._awaited += len(self._queue)
        self._queue.clear()

    def receive(self):
        """Return the replies to the sent commands, each a value or an error."""
        replies = [self._reply() for _ in range(self._awaited)]
        self._awaited = 0
        return replies

    def _reply(self):
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def empty(self):
        """Empty the server, and drop the added commands."""
        self._queue = [("CONFIG", "SET", "maxmemory", "0"), ("FLUSHALL",)]
        self.send()
        self.receive()
