"""`read_numbers` sends commands while it reads replies, and assigns each reply to its command."""

import pytest
import redis

from celery_affinity.broker.client import PersistentClient, read_numbers, read_values, run_pipelined


@pytest.fixture
def lists(redis_client):
    with redis_client.pipeline() as pipe:
        for number in range(1500):
            pipe.rpush(f"ü:{number}", *"x" * (number % 7 + 1))
        pipe.execute()
    return [str(number) for number in range(1500)]


def of_pages(names, size):
    return (run_pipelined("LLEN", "ü:", names[first : first + size]) for first in range(0, len(names), size))


@pytest.mark.parametrize("size", [1, 22, 1000])
def test_each_command_gets_its_own_number(size, lists, redis_client):
    numbers = list(read_numbers(redis_client, of_pages(lists, size)))
    assert [len(some) for some in numbers[:-1]] == [size] * (len(numbers) - 1)
    assert [number for some in numbers for number in some] == [number % 7 + 1 for number in range(1500)]
    assert list(read_numbers(redis_client, [])) == []


def test_pipeline_builds_a_limited_number_of_commands_ahead(lists, redis_client):
    made = []

    def commands():
        for page in of_pages(lists, 1):
            made.append(page)
            yield page

    for replied, _ in enumerate(read_numbers(redis_client, commands()), 1):
        assert len(made) - replied < 1000
        if replied < 500:
            assert len(made) - replied >= 499, "the server has the next ones"


def test_error_reply_leaves_no_reply_for_the_next_command(lists, redis_client):
    pages = [*of_pages(lists[:700], 22), run_pipelined("RENAME", "ü:", ["700"]), *of_pages(lists[701:], 22)]
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        list(read_numbers(redis_client, pages))
    assert redis_client.echo("mine") == b"mine"


def test_key_of_wrong_type_yields_zero_and_hides_none(lists, redis_client):
    redis_client.set("ü:700", "no list")
    numbers = [number for some in read_numbers(redis_client, of_pages(lists, 22)) for number in some]
    assert numbers == [0 if number == 700 else number % 7 + 1 for number in range(1500)]


def test_values_are_read_with_further_arguments(lists, redis_client):
    redis_client.set("ü:700", "no list")
    commands = (run_pipelined("LRANGE", "ü:", lists[first : first + 22], ["0", "1"]) for first in range(0, 1500, 22))
    values = [value for some in read_values(redis_client, commands) for value in some]
    assert values == [None if number == 700 else [b"x"] * min(number % 7 + 1, 2) for number in range(1500)]
    assert redis_client.echo("mine") == b"mine"


def test_push_message_between_numbers_is_no_reply(lists, server):
    with redis.Redis.from_url(server.url, protocol=3) as client, redis.Redis.from_url(server.url) as other:
        client.execute_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "pushed")
        other.set("pushed", "now")
        numbers = [number for some in read_numbers(client, of_pages(lists, 22)) for number in some]
        assert numbers == [number % 7 + 1 for number in range(1500)]


def test_non_ascii_name_does_not_shift_other_replies(lists, redis_client):
    redis_client.rpush("ü:ü", *"abc")
    numbers = [number for some in read_numbers(redis_client, of_pages(["ü", *lists[:50]], 10)) for number in some]
    assert numbers == [3, *(number % 7 + 1 for number in range(50))]


def test_closed_iterator_leaves_no_reply_for_the_next_command(lists, redis_client):
    numbers = read_numbers(redis_client, of_pages(lists, 22))
    assert next(numbers) == [number % 7 + 1 for number in range(22)]
    numbers.close()
    assert redis_client.echo("mine") == b"mine"


def test_pool_of_one_connection_is_enough(lists, server):
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1)
    client = PersistentClient(pool)
    client.ping()
    assert sum(map(sum, read_numbers(client, of_pages(lists, 22)))) == sum(number % 7 + 1 for number in range(1500))
    client.ping()
    client.close()


def test_health_check_takes_no_reply_of_a_command(lists, server):
    with redis.Redis.from_url(server.url, health_check_interval=1e-9) as client:
        numbers = [number for some in read_numbers(client, of_pages(lists, 22)) for number in some]
    assert numbers == [number % 7 + 1 for number in range(1500)]


@pytest.mark.parametrize("protocol", [2, 3])
def test_values_with_line_breaks_and_missing_values_are_read_exactly(protocol, server, redis_client):
    odd = [b"", b"\r\n", b"$5\r\nghost\r\n", b"*1", b"a\r\n" * 30_000, "ü€".encode(), b"\x00_\r\n"]
    names = [str(number) for number in range(1200)]
    with redis_client.pipeline() as pipe:
        for number in range(0, 1200, 2):
            pipe.hset(f"ü:{number}", mapping={"a": odd[number % 7], "b": str(number)})
        pipe.execute()
    with redis.Redis.from_url(server.url, protocol=protocol) as client:
        commands = (run_pipelined("HMGET", "ü:", names[first : first + 70], ("a", "b")) for first in range(0, 1200, 70))
        rows = [row for some in read_values(client, commands) for row in some]
        assert client.echo("mine") == b"mine"
    assert rows == [[None] * 2 if number % 2 else [odd[number % 7], str(number).encode()] for number in range(1200)]


def test_hash_of_wrong_type_yields_none_and_hides_no_other(lists, redis_client):
    redis_client.hset("ü:700x", "a", "value")
    names = [*lists[:700], "700x", *lists[700:]]
    commands = (run_pipelined("HMGET", "ü:", names[first : first + 70], ("a",)) for first in range(0, 1501, 70))
    rows = [row for some in read_values(redis_client, commands) for row in some]
    assert rows == [[b"value"] if number == 700 else None for number in range(1501)]
    assert redis_client.echo("mine") == b"mine"


def test_push_message_between_values_is_no_reply(server, redis_client):
    redis_client.hset("ü:1", "a", "value")
    with redis.Redis.from_url(server.url, protocol=3) as client:
        client.execute_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "pushed")
        redis_client.set("pushed", "now")
        assert list(read_values(client, [run_pipelined("HMGET", "ü:", ["1"] * 800, ("a",))])) == [[[b"value"]] * 800]
