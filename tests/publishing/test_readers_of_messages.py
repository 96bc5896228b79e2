"""Every module reads the numbers, strings and bodies of untrusted messages with `untrusted` and `bodies`."""

import ast
from pathlib import Path

import celery_affinity

PACKAGE = Path(celery_affinity.__file__).parent

#: Functions whose result can be much larger than the input: function name (last part) -> modules that may call it, each
#: with the reason.
DECODERS = {
    "loads": {
        "schema/untrusted.py": "is the boundary",
        "publishing/bulk.py": "reads the message that Celery has made here, from the user's own arguments",
        "liveness/guard_process.py": "reads lines from its parent process",
        "lab/trace_assembly.py": "reads facts of a recording, which our own workers wrote",
        "lab/trace_file.py": "reads a file that a person names, and reports what is wrong with it",
        "reports/job_lists.py": "reads the cursor of a page, at most some hundred characters, and catches its errors",
        "reports/type_metrics.py": "reads what our own dispatcher wrote; a bad value is left out",
        "admin/job_values.py": "reads what it has dumped itself",
        "http_workers/worker.py": "reads the row that a web process wrote",
        "http_workers/job_end.py": "reads the note that a web process wrote",
        "scheduler/messages.py": "reads what our own workers recorded",
        "web/traces.py": "reads the first line of a file in the directory of the web process",
    },
    "decompress": {
        "schema/untrusted.py": "is the boundary",
        "publishing/message_body.py": "is the boundary",
        "publishing/bulk.py": "reads the message that Celery has made here, from the user's own arguments",
    },
    "b64decode": {
        "publishing/message_body.py": "is the boundary",
        "publishing/message.py": "reads the message that this process publishes",
    },
    "urlsafe_b64decode": {"reports/job_lists.py": "reads the cursor of a page, at most some hundred characters"},
    "decode_body": {"publishing/bulk.py": "reads the message that Celery has made here"},
    "maybe_iso8601": {
        "publishing/message.py": "is the boundary of times, and looks at type and length first",
        "transport/inbox.py": "looks at type and length first",
    },
    "Decimal": {},
    "fromisoformat": {
        "admin/job_values.py": "reads the end of a task from the result backend, a text",
        "admin/submit.py": "checks a text from HTTP, whose body is limited",
        "options/due_times.py": "looks at type and length first",
    },
}

#: Attributes that decode the body of a kombu message.
DECODING_ATTRIBUTES = {"payload": {"worker/control_commands.py": "has checked the size with raw_body before"}}

#: Conversions whose run time or result size depends on the value.
CONVERSIONS = {"int", "float", "str", "repr", "round", "Decimal"}

#: Conversions in modules that read messages: (module, function) -> why the value is trusted or already checked.
CONVERTED = {
    ("results/reporter.py", "stored_meta"): "the URL of a result backend",
    ("publishing/message.py", "written_message"): "the result of dumps",
    ("publishing/message.py", "delay_us"): "a time that `moment` returned",
    ("publishing/message.py", "expires_us"): "a time that `moment` returned",
    ("publishing/publish_call.py", "__reduce__"): "a Sending is a str",
    ("publishing/publish_call.py", "header"): "a Sending is a str",
    ("publishing/publish_call.py", "_connect"): "a URL of an app's own settings",
    ("publishing/publish_call.py", "publish_call_of"): "a name in a message that this process publishes",
    ("publishing/bulk.py", "publish_many"): "a UUID made here",
    ("reports/dead_letters.py", "_value_text"): "a part of a literal of limited length, or a text",
    ("reports/celery_inspect.py", "responder_id"): "a setting, which `complete` has checked",
    ("http_workers/worker.py", "join_worker"): "a setting, which `complete_settings` has checked",
    ("http_workers/worker.py", "claims_of_worker"): "digits of a limited number",
    ("http_workers/worker.py", "claim_of_job"): "the fence in a path, which pydantic has checked",
    ("http_workers/handout.py", "hand_out_jobs"): "an error",
    ("http_workers/handout.py", "_as_handed_out"): "the fence, which Claim.parse has checked",
    ("publishing/option_resolution.py", "_merge_rule"): "a number of `Merge`, which checks it",
    ("publishing/option_sources.py", "__reduce__"): "an Expiry is a str",
    ("publishing/option_sources.py", "_is_ours"): "a file name of the interpreter's",
    ("results/reporter.py", "describe_error"): "an error, in a try block",
    ("worker/job_feed.py", "obey"): "a control message, in a try block",
    ("worker/job_feed.py", "_read"): "an error",
    ("worker/preemption.py", "_find_stop_order"): "a stop order, which the server made",
    ("worker/request.py", "__str__"): "an error of this process",
    ("transport/channel.py", "_size"): "the length of a list",
    ("transport/channel.py", "_purge"): "the length of a list",
    ("transport/inbox.py", "_check"): "a delivery tag that is an integer of JSON",
    ("transport/inbox.py", "_read_reply"): "an error",
    ("transport/inbox.py", "_get_message_priority"): "a priority that was clamped",
    ("transport/transport.py", "as_uri"): "a URL",
    ("transport/transport.py", "_describe"): "an option of the transport",
    ("worker/request.py", "_set_wait_times"): "a time of this process",
    ("worker/preemption.py", "preempted"): "a delivery tag, which the worker has made",
    ("worker/control_commands.py", "_shown"): "the repr of a text or a bounded number",
}

#: Modules whose "body" and "headers" do not belong to a kombu message.
OTHER_MESSAGES = {"web/auth.py": "parts of ASGI's messages"}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def last_name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def reads_messages(tree):
    """Return True if a module reads a field of a message, by a subscript, by ``get`` or by ``.properties``."""
    parts = {"headers", "properties", "body", "content-type", "content-encoding"}

    def is_part(node):
        return isinstance(node, ast.Constant) and node.value in parts

    return any(
        (isinstance(node, ast.Subscript) and is_part(node.slice))
        or (isinstance(node, ast.Call) and last_name(node.func) == "get" and node.args and is_part(node.args[0]))
        or (isinstance(node, ast.Attribute) and node.attr == "properties" and isinstance(node.ctx, ast.Load))
        for node in ast.walk(tree)
    )


def conversions(tree):
    """Yield the enclosing function's name and the line of each conversion call, including calls through `map`."""

    def walk(node, function):
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            if isinstance(child, ast.Call):
                called = [child.func, *child.args] if last_name(child.func) == "map" else [child.func]
                for each in called:
                    if isinstance(each, ast.Name) and each.id in CONVERSIONS:
                        yield function, child.lineno
            yield from walk(child, inner)

    yield from walk(tree, "")


def test_bytes_are_decoded_only_at_the_boundary():
    wrong, used = [], set()
    for module, tree in modules():
        for node in ast.walk(tree):
            name = last_name(node.func) if isinstance(node, ast.Call) else ""
            if name in DECODERS:
                is_ours = name == "loads" and isinstance(node.func, ast.Name)  # `loads` imported from `untrusted`
                imported = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
                ours = {alias.asname or alias.name for each in imported if each.level for alias in each.names}
                if is_ours and "loads" in ours:
                    continue
                used.add((name, module))
                if module not in DECODERS[name]:
                    wrong.append(f"{module}:{node.lineno} calls {name}")
            if isinstance(node, ast.Attribute) and node.attr in DECODING_ATTRIBUTES:
                used.add((node.attr, module))
                if module not in DECODING_ATTRIBUTES[node.attr] and isinstance(node.value, ast.Name):
                    wrong.append(f"{module}:{node.lineno} reads .{node.attr}")
    assert not wrong, "\n".join(["use schema.untrusted and publishing.message_body:", *wrong])
    tables = (DECODERS, DECODING_ATTRIBUTES)
    assert not {(name, each) for table in tables for name, modules in table.items() for each in modules} - used


def test_message_readers_convert_values_only_at_the_boundary():
    wrong, used = [], set()
    for module, tree in modules():
        if module not in OTHER_MESSAGES and reads_messages(tree):
            for function, line in conversions(tree):
                used.add((module, function))
                if (module, function) not in CONVERTED:
                    wrong.append(f"{module}:{line} in {function}")
    assert not wrong, "\n".join(["use clamped, whole, text of schema.untrusted:", *wrong])
    assert not CONVERTED.keys() - used


def test_replies_over_http_are_strict_json():
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in modules()
        if module.startswith("web/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node.func) == "dumps"
        if not any(each.arg == "allow_nan" and getattr(each.value, "value", True) is False for each in node.keywords)
    ]
    assert not wrong
