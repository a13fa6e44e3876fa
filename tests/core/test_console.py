import pytest

from qdeploy.core import console


def test_progress_without_a_terminal_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.0)
    with console.progress("块", total=3) as bar:
        bar.advance(note="[x]")
        bar.advance(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "块: 1/3" in err and "[x]" in err
    assert "块: done in" in err


def test_say_and_warn_go_to_stderr_unformatted(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("[bold]not markup[/]")
    console.warn("小心 [1]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[bold]not markup[/]" in err
    assert "warning: 小心 [1]" in err
