"""The walk without a server goes on being one: `make conformance` does not run it."""

from .alone import main


def test_the_walk_on_the_reference_alone_comes_to_its_end(capsys):
    main(steps=300, seed=1)
    assert "300 steps" in capsys.readouterr().out
