"""Who talks to whom: publishers, the server, workers with their guards, and who looks."""

from .drawing import Drawing

HOLDS = (
    "jobs that wait, by type, mode and priority",
    "jobs with an ETA, and dead letters",
    "each worker's slots, claims and inbox",
    "settings, rules, pauses",
)


def draw() -> str:
    drawing = Drawing(
        606,
        "The parts of celery_affinity",
        "Publishers write jobs into Redis or Valkey, which holds all state and runs the scripts that place jobs. A worker "
        "reads jobs from its inbox and tells their ends. Its dispatcher ticks, and its guard, a process of its own, heartbeats "
        "for it. Commands, the web page, Flower and Prometheus only read.",
    )
    _publishers(drawing)
    _server(drawing)
    _machine(drawing)
    _observers(drawing)
    return drawing.svg()


def _publishers(drawing: Drawing) -> None:
    drawing.box(16, 16, 528, 66)
    drawing.text(32, 43, "Publishers", "bold")
    drawing.text(32, 68, "web apps, beat, tasks that call tasks; stock Celery's producers too", "small fill-soft")
    drawing.arrow([(100, 82), (100, 132)], "blue")
    drawing.text(112, 112, "publish", "code")


def _server(drawing: Drawing) -> None:
    drawing.box(16, 132, 528, 208, "fill-panel line-blue")
    drawing.text(32, 160, "Redis or Valkey", "bold")
    drawing.text(32, 186, "holds all state:", "small fill-soft")
    for number, words in enumerate(HOLDS):
        drawing.text(44, 209 + 22 * number, f"• {words}", "small")
    drawing.box(32, 288, 496, 38, "fill-ground line-blue", 6)
    drawing.text(44, 312, "runs the scripts: each step is one script, so there are no locks", "small")


def _machine(drawing: Drawing) -> None:
    drawing.box(16, 402, 416, 188, "fill-ground line-edge dashed")
    for x, words, is_down in ((52, "inbox", True), (134, "release", False), (230, "tick", False)):
        drawing.arrow([(x, 340), (x, 446)] if is_down else [(x, 446), (x, 340)], "green" if is_down else "soft")
        drawing.text(x + 8, 384, words, "code")
    drawing.arrow([(320, 446), (320, 340)])
    drawing.text(328, 384, "heartbeat, recover", "code")
    drawing.text(416, 580, "the worker's machine", "small fill-soft", "end")
    drawing.box(30, 446, 236, 112, "fill-panel line-green")
    drawing.text(44, 470, "Worker", "bold")
    for number in range(3):
        drawing.box(44 + 48 * number, 482, 42, 26, "fill-green", 5)
        drawing.text(65 + 48 * number, 500, "slot", "small fill-on", "middle")
    drawing.text(44, 532, "dispatcher (a thread): what no", "small fill-soft")
    drawing.text(44, 549, "event triggers", "small fill-soft")
    drawing.box(280, 446, 138, 112)
    drawing.text(294, 470, "Guard", "bold")
    for number, words in enumerate(("a process that", "notices a death", "within a second")):
        drawing.text(294, 494 + 18 * number, words, "small fill-soft")


def _observers(drawing: Drawing) -> None:
    drawing.arrow([(494, 340), (494, 446)])
    drawing.text(486, 384, "read", "code", "end")
    drawing.box(444, 446, 100, 112)
    for number, words in enumerate(("commands", "web page", "Flower", "Prometheus")):
        drawing.text(456, 471 + 25 * number, words, "small")
