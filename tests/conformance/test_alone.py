"""The random-operation test without a server still works; `make conformance` does not run it."""

from .alone import main


def test_random_operations_on_the_reference_alone_succeed(capsys):
    main(steps=300, seed=1)
    assert "300 steps" in capsys.readouterr().out
