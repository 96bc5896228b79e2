"""Misspelt options and invalid values of calls, signatures and retries."""

import pytest
from celery import Celery, chain, chord, group, signature
from kombu.exceptions import OperationalError

from celery_affinity import OptionError, publish_many

from ..support.messages import running
from ..support.misspellings import MISTAKES, OURS, refused, task


@pytest.fixture
def app(new_app):
    return new_app()


def calls(app, render, option):
    """Yield all ways to call a task with an option."""
    given = {option: "pdf"}
    yield lambda: render.apply_async(**given)
    yield lambda: render.apply_async((), {}, **given)
    yield lambda: app.send_task("shop.render", **given)
    yield lambda: render.s().apply_async(**given)
    yield lambda: render.signature(options=given).apply_async()
    yield lambda: signature("shop.render", app=app, options=given).delay()
    yield lambda: group([render.s(), render.s()]).apply_async(**given)
    yield lambda: chain(render.s(), render.s()).apply_async(**given)
    yield lambda: publish_many(render, [(), ()], **given)
    yield lambda: render.apply(**given)


def test_misspelt_option_of_a_call_is_refused(app, subtests):
    render = task(app)
    for name, ours in MISTAKES:
        with subtests.test(name):
            for call in calls(app, render, name):
                with refused(f"call of task shop.render: unknown option {name!r}; did you mean {ours!r}?"):
                    call()
            for each in (render.s(), render.si(), group([render.s()]), chain(render.s(), render.s())):
                with pytest.raises(OptionError, match=f"^signature of task .*: unknown option {name!r}"):
                    each.set(**{name: "pdf"})


def test_misspelt_option_of_a_chord_is_refused(new_app):
    app = new_app(result_backend="cache+memory://", task_ignore_result=False)
    with refused("call of task "):
        chord([task(app).s()], task(app, "shop.other").s()).apply_async(affinty="pdf")


def test_misspelt_option_of_an_eager_call_is_refused(new_app):
    render = task(new_app(task_always_eager=True))
    with refused("call of task shop.render: unknown option 'affinty'"):
        render.apply_async(affinty="pdf")
    with refused("call of task shop.render: affinity must be the name of a queue"):
        render.apply_async(affinity="a,b")
    assert render.apply_async(affinity="pdf", on_demand=True, my_flag=1).successful()


def test_misspelt_option_of_a_retry_is_refused(app):
    render = task(app)
    with running(
        render, {"headers": {"id": "1", "task": "shop.render"}, "properties": {"priority": 0, "delivery_info": {}}}
    ):
        with refused("retry of task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
            render.retry(countdown=0, affinty="excel")
        with refused("retry of task shop.render: affinity must be the name of a queue"):
            render.retry(countdown=0, affinity="a,b")


def test_stamps_may_have_any_name(app):
    stamped = task(app).s()
    stamped.stamp(affinty="a", affinity="b,c", priority="high")
    assert stamped.options["affinty"] == ["a"] or stamped.options["affinty"] == "a"


@pytest.mark.parametrize("own", ["my_flag", "affinity_group", "demand", "infinity", "correlation_id", "app_id"])
def test_users_own_options_are_published(redis_client, valkey, own):
    app = Celery("stamped", broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport=OURS, task_ignore_result=True)
    task(app).apply_async(**{own: "x"}, priority=3, retry_policy={"max_retries": 1}, headers={"affinty": "x"})
    assert list(redis_client.scan_iter("*job:*"))
    app.close()


def test_call_with_valid_options_reaches_the_server(app):
    with pytest.raises(OperationalError):
        task(app).apply_async(my_flag=1)
