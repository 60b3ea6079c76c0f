from __future__ import annotations

import pytest
from tools.gen_docs import BEGIN, END, pages, table, with_part


def test_pages_of_the_repository_are_current() -> None:
    stale = [path.name for path, text in pages().items() if path.read_text("utf-8") != text]
    assert stale == [], "run make docs"


def test_only_the_marked_part_of_a_page_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_part(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        with_part("no marks", "x")


def test_bar_within_a_cell_does_not_end_it() -> None:
    assert table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"
