"""Golden stories: each is told again and must be the same, word for word.

`python -m tests.sim tests/simulation/stories/*.txt` writes them anew; read the difference.
"""

from pathlib import Path

import pytest

from dtd.errors import UsageError
from tests.sim import story

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_is_told_again_word_for_word(path: Path) -> None:
    text = path.read_text()
    assert story.tell(text) == text


def test_script_without_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="no cluster"):
        story.tell("# nothing\n")


@pytest.mark.parametrize(
    "line", ["at 1.0 explode worker-1", "submit steps=x", "sing", "at", "failing"]
)
def test_line_that_is_not_understood_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="line 2 of the story"):
        story.tell(f"cluster seed=1 workers=1\n{line}\n")
