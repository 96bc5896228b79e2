"""The states of a job, and the arrows between them."""

from .drawing import Drawing

PLACES = {  # state -> its box's middle, colour
    "scheduled": ((84, 142), "blue"),
    "pending": ((260, 142), "blue"),
    "claimed": ((260, 242), "green"),
    "running": ((260, 342), "green"),
    "done": ((160, 452), "ink"),
    "failed": ((360, 452), "ink"),
    "revoked": ((484, 112), "ink"),
    "expired": ((484, 172), "ink"),
    "dead": ((484, 342), "red"),
}


def draw() -> str:
    drawing = Drawing(
        530,
        "The life of a job",
        "publish makes a job pending, or scheduled if it has an ETA; a tick makes it pending when its time has come. claim "
        "gives a pending job to a worker, start makes it running, release ends it: done, failed or dead. requeue and recover "
        "make a claimed or running job pending again. A pending job can be revoked, or expire. A dead letter can be replayed.",
    )
    drawing.text(260, 36, "apply_async", "code", "middle")
    for state, (middle, colour) in PLACES.items():
        _state(drawing, state, middle, colour)
    _way_through(drawing)
    _way_back(drawing)
    _ends(drawing)
    drawing.text(
        280, 512, "A retry is a new job with the same task id: it begins at publish.", "small fill-soft", "middle"
    )
    return drawing.svg()


def _state(drawing: Drawing, state: str, middle: tuple[float, float], colour: str) -> None:
    x, y = middle
    drawing.box(x - 56, y - 21, 112, 42, f"fill-panel line-{'edge' if colour == 'ink' else colour}")
    drawing.text(x, y + 5, state, f"bold fill-{colour}", "middle")


def _way_through(drawing: Drawing) -> None:
    drawing.arrow([(260, 48), (260, 121)])
    drawing.text(270, 88, "publish", "code")
    drawing.arrow([(205, 32), (84, 32), (84, 121)])
    drawing.text(94, 74, "publish,", "code")
    drawing.text(94, 92, "with an ETA", "small fill-soft")
    drawing.arrow([(140, 134), (204, 134)])
    drawing.text(172, 124, "tick", "code", "middle")
    drawing.arrow([(260, 163), (260, 221)])
    drawing.text(270, 206, "claim", "code")
    drawing.arrow([(260, 263), (260, 321)])
    drawing.text(270, 298, "start", "code")


def _way_back(drawing: Drawing) -> None:
    drawing.line([(204, 342), (176, 342), (176, 242)], "line-orange")
    drawing.line([(204, 242), (176, 242)], "line-orange")
    drawing.arrow([(176, 242), (176, 151), (204, 151)], "orange")
    for number, words in enumerate(("requeue:", "recover:")):
        drawing.text(166, 222 + 62 * number, words, "code", "end")
    drawing.text(166, 240, "worker cannot run it", "small fill-soft", "end")
    drawing.text(166, 302, "worker is dead", "small fill-soft", "end")


def _ends(drawing: Drawing) -> None:
    drawing.line([(260, 363), (260, 404)])
    drawing.arrow([(260, 404), (160, 404), (160, 431)])
    drawing.arrow([(260, 404), (360, 404), (360, 431)])
    drawing.text(270, 390, "release", "code")
    drawing.arrow([(316, 134), (372, 112), (428, 112)])
    drawing.text(372, 102, "revoke", "code", "middle")
    drawing.arrow([(316, 150), (372, 172), (428, 172)])
    drawing.text(384, 192, "tick", "code", "middle")
    drawing.arrow([(316, 342), (428, 342)], "red")
    drawing.text(372, 332, "release", "code", "middle")
    drawing.text(372, 360, "recover", "code", "middle")
    drawing.arrow([(484, 321), (484, 222), (334, 222), (300, 163)], "orange")
    drawing.text(474, 240, "replay", "code", "end")
