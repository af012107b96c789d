"""Edits in two steps, and the task list."""

from __future__ import annotations

import threading

import pytest

from agent.toolkit import PendingEdit, TaskStatus, TodoItem, Toolkit
from agent.tools import AgentToolResult, ArgumentsError, ToolContext
from tests.toolkit.places import Places, expect_error, use

CODE = "import os\n\n\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n"


@pytest.fixture(autouse=True)
def code(places: Places) -> None:
    (places.root / "code.py").write_text(CODE)


def propose(kit: Toolkit, old: str, new: str, **more: object) -> str:
    """The id of an edit that was proposed."""
    answer = use(kit.edit, file_path="code.py", old_string=old, new_string=new, **more)
    assert answer.startswith("Proposed edit_"), answer
    return answer.split()[1].rstrip(":")


def content(places: Places) -> str:
    return (places.root / "code.py").read_bytes().decode()


def test_an_edit_is_shown_first_and_made_when_it_is_confirmed(kit: Toolkit, places: Places) -> None:
    result = kit.edit.run({"file_path": "code.py", "old_string": "return 1", "new_string": "return 11"}, ToolContext())
    assert isinstance(result, AgentToolResult)
    [(edit_id, edit)] = kit.pending_edits.items()
    assert result.content == (
        f"Proposed {edit_id}: 'code.py', line 5. Nothing is changed yet.\n"
        "  \n  \n  def one():\n- return 1\n+ return 11\n  \n  \n  def two():\n"
        f'Call EditConfirm with edit_id="{edit_id}" to make the change.'
    )
    assert result.details["edit_id"] == edit_id
    expected = PendingEdit("code.py", "return 1", "return 11", 5, ["", "", "def one():"], ["", "", "def two():"], 0.0)
    edit.created_at = 0.0
    assert edit == expected
    assert content(places) == CODE
    assert use(kit.edit_confirm, edit_id=edit_id) == "Changed 'code.py', line 5."
    assert content(places) == CODE.replace("return 1", "return 11")
    assert kit.pending_edits == {}
    assert f"There is no proposed edit '{edit_id}'" in expect_error(kit.edit_confirm, edit_id=edit_id)


def test_an_edit_can_be_dropped(kit: Toolkit, places: Places) -> None:
    edit_id = propose(kit, "return 1", "return 11")
    assert use(kit.edit_confirm, edit_id=edit_id, action="discard") == f"Dropped {edit_id}. 'code.py' is unchanged."
    assert (content(places), kit.pending_edits) == (CODE, {})


def test_an_edit_of_a_file_that_has_changed_is_refused(kit: Toolkit, places: Places) -> None:
    edit_id = propose(kit, "return 1", "return 11")
    (places.root / "code.py").write_text(f"# a line more\n{CODE}")
    assert "has changed since" in expect_error(kit.edit_confirm, edit_id=edit_id)
    assert content(places) == f"# a line more\n{CODE}"
    assert kit.pending_edits == {}


def test_of_two_edits_proposed_for_one_file_the_second_is_refused(kit: Toolkit, places: Places) -> None:
    first, second = propose(kit, "return 1", "return 11"), propose(kit, "return 2", "return 22")
    assert use(kit.edit_confirm, edit_id=first).startswith("Changed")
    assert "has changed since" in expect_error(kit.edit_confirm, edit_id=second)
    assert "return 2\n" in content(places)


def test_a_file_that_is_gone_or_a_link_by_now_is_not_edited(kit: Toolkit, places: Places) -> None:
    first, second = propose(kit, "return 1", "x"), propose(kit, "return 2", "x")
    (places.root / "code.py").unlink()
    assert expect_error(kit.edit_confirm, edit_id=first) == "'code.py' does not exist."
    (places.outside / "code.py").write_text(CODE)
    (places.root / "code.py").symlink_to(places.outside / "code.py")
    assert "leads out" in expect_error(kit.edit_confirm, edit_id=second)
    assert (places.outside / "code.py").read_text() == CODE


def test_it_must_be_clear_what_is_meant(kit: Toolkit, places: Places) -> None:
    def answer(old: str, new: str = "x") -> str:
        return expect_error(kit.edit, file_path="code.py", old_string=old, new_string=new)

    assert "is in 'code.py' 2 times (lines 5, 9)" in answer("return")
    assert "is not in 'code.py'" in answer("return 3")
    assert "is empty" in answer("")
    assert "are the same" in answer("one", "one")
    assert kit.pending_edits == {}


def test_every_occurrence_is_replaced_on_demand(kit: Toolkit, places: Places) -> None:
    edit_id = propose(kit, "return", "yield", replace_all=True)
    assert kit.pending_edits[edit_id].match_count == 2
    assert use(kit.edit_confirm, edit_id=edit_id) == "Changed 'code.py', line 5 in 2 places."
    assert content(places) == CODE.replace("return", "yield")


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\n", "b", "x", b"a\r\nx\n"),
        (b"caf\xe9 one\n", "one", "two é", b"caf\xe9 two \xc3\xa9\n"),
        (b"\xef\xbb\xbfone\n", "one", "two", b"\xef\xbb\xbftwo\n"),
        (b"no end", "end", "end\n", b"no end\n"),
        (b"one", "one", "", b""),
    ],
)
def test_all_other_bytes_stay_as_they_are(
    kit: Toolkit, places: Places, before: bytes, old: str, new: str, after: bytes
) -> None:
    (places.root / "code.py").write_bytes(before)
    use(kit.edit_confirm, edit_id=propose(kit, old, new))
    assert (places.root / "code.py").read_bytes() == after


def test_what_is_no_text_is_not_edited(kit: Toolkit, places: Places) -> None:
    for data in (b"a\0b", "wide".encode("utf-16")):
        (places.root / "code.py").write_bytes(data)
        assert "cannot be edited" in expect_error(kit.edit, file_path="code.py", old_string="a", new_string="b")


def test_an_edit_that_cannot_be_written_is_refused(places: Places) -> None:
    with Toolkit(places.root, max_file_bytes=100) as kit:
        assert "bytes" in expect_error(kit.edit_confirm, edit_id=propose(kit, "return 1", "x" * 200))
        assert "lone surrogate" in expect_error(kit.edit_confirm, edit_id=propose(kit, "return 1", "\ud800"))
    assert content(places) == CODE


def test_only_so_many_edits_wait(kit: Toolkit) -> None:
    ids = [propose(kit, "return 1", f"return {number}") for number in range(10, 115)]
    assert list(kit.pending_edits) == ids[-100:]


def test_edits_confirmed_at_once_do_not_get_in_each_others_way(kit: Toolkit, places: Places) -> None:
    ids = [propose(kit, "return 1", f"return {number}") for number in range(10, 30)]
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda edit_id=edit_id: answers.append(use(kit.edit_confirm, edit_id=edit_id)))
        for edit_id in ids
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answer.startswith("Changed") for answer in answers) == 1
    assert len(answers) == 20


# Tasks


def test_the_list_of_tasks_is_replaced_as_a_whole(kit: Toolkit) -> None:
    shown = use(
        kit.todo_write,
        todos=[
            {"content": "Read", "status": "completed", "active_form": "Reading"},
            {"content": "Write", "status": "in_progress", "active_form": "Writing"},
            {"content": "Rest", "status": "pending"},
        ],
    )
    assert shown == "1 of 3 tasks are done.\n[x] Read\n[>] Write\n[ ] Rest"
    assert kit.todos == [
        TodoItem("Read", TaskStatus.COMPLETED, "Reading"),
        TodoItem("Write", TaskStatus.IN_PROGRESS, "Writing"),
        TodoItem("Rest", TaskStatus.PENDING, "Rest"),
    ]
    use(kit.todo_write, todos=[])
    assert kit.todos == []


def test_tasks_that_are_none_are_refused_before_anything_changes(kit: Toolkit) -> None:
    use(kit.todo_write, todos=[{"content": "Stay", "status": "pending"}])
    for wrong in (
        [{"content": "x", "status": "done"}],
        [{"status": "pending"}],
        [{"content": "", "status": "pending"}],
    ):
        with pytest.raises(ArgumentsError):
            kit.todo_write.check({"todos": wrong})
    assert [todo.content for todo in kit.todos] == ["Stay"]
