from indusagi.core.notes import Note


def test_note_is_one_line_with_its_remedy() -> None:
    assert str(Note("tool 'a'", "registered twice", "rename one")) == ("tool 'a': registered twice (rename one)")


def test_note_without_a_remedy_has_no_parentheses() -> None:
    assert str(Note("server 'x'", "skipped")) == "server 'x': skipped"
