"""Many commands sent while their replies are read: each gets its own number."""

import pytest
import redis

from celery_affinity.broker.client import PersistentClient, read_numbers, run_pipelined


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
    found = list(read_numbers(redis_client, of_pages(lists, size)))
    assert [len(some) for some in found[:-1]] == [size] * (len(found) - 1)
    assert [number for some in found for number in some] == [number % 7 + 1 for number in range(1500)]
    assert list(read_numbers(redis_client, [])) == []


def test_the_next_commands_are_made_while_the_server_is_at_work_and_no_more(lists, redis_client):
    made = []

    def commands():
        for page in of_pages(lists, 1):
            made.append(page)
            yield page

    for replied, _ in enumerate(read_numbers(redis_client, commands()), 1):
        assert len(made) - replied < 400
        if replied < 1000:
            assert len(made) - replied >= 199, "the server has the next ones"


def test_an_error_among_the_replies_leaves_nothing_for_the_next_command(lists, redis_client):
    pages = [*of_pages(lists[:700], 22), run_pipelined("RENAME", "ü:", ["700"]), *of_pages(lists[701:], 22)]
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        list(read_numbers(redis_client, pages))
    assert redis_client.echo("mine") == b"mine"


def test_a_key_of_another_type_counts_nothing_and_hides_no_other(lists, redis_client):
    redis_client.set("ü:700", "no list")
    found = [number for some in read_numbers(redis_client, of_pages(lists, 22)) for number in some]
    assert found == [0 if number == 700 else number % 7 + 1 for number in range(1500)]


def test_a_name_that_is_no_ascii_leaves_the_others_their_own_numbers(lists, redis_client):
    redis_client.rpush("ü:ü", *"abc")
    found = [number for some in read_numbers(redis_client, of_pages(["ü", *lists[:50]], 10)) for number in some]
    assert found == [3, *(number % 7 + 1 for number in range(50))]


def test_who_stops_half_way_leaves_nothing_for_the_next_command(lists, redis_client):
    found = read_numbers(redis_client, of_pages(lists, 22))
    assert next(found) == [number % 7 + 1 for number in range(22)]
    found.close()
    assert redis_client.echo("mine") == b"mine"


def test_a_pool_of_one_connection_is_enough(lists, server):
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1)
    client = PersistentClient(pool)
    client.ping()
    assert sum(map(sum, read_numbers(client, of_pages(lists, 22)))) == sum(number % 7 + 1 for number in range(1500))
    client.ping()
    client.close()


def test_a_check_of_health_takes_no_reply_of_a_command(lists, server):
    with redis.Redis.from_url(server.url, health_check_interval=1e-9) as client:
        found = [number for some in read_numbers(client, of_pages(lists, 22)) for number in some]
    assert found == [number % 7 + 1 for number in range(1500)]
