"""The pages under docs/ are held to the software: keys, values, verbs, programs and links that they show exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inkmill.cli.main import ALIASES
from inkmill.config.keys import all_keys
from inkmill.config.load import load_spec

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SECTIONS = "model|dataset|train|evaluate|inference|prune|export|quantize|dataset_convert|gen_trt_engine"
OVERRIDE = rf"(?:results_dir|(?:{SECTIONS})(?:\.\w+)+)="
KEYS = set(all_keys())

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Return what stands in `code` outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def command_lines(text: str) -> list[list[str]]:
    """Return the words of every shown inkmill command, in blocks of either kind."""
    joined = re.sub(r"\\\n\s*", "", text)
    shown = [
        *re.findall(r"^```\w*\n(.*?)^```", joined, re.MULTILINE | re.DOTALL),
        *re.findall(r"^    (.*)$", joined, re.M),
    ]
    lines = re.findall(r"^(?:torchrun .* -m )?(inkmill \w.*)$", "\n".join(shown), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def settings(text: str) -> list[list[str]]:
    """Return the KEY=VALUE words that are shown together, in a command or in a code span."""
    found = [[word for word in words if re.match(OVERRIDE, word)] for words in command_lines(text)]
    for span in spans(text):
        words = re.split(rf" (?={OVERRIDE})", re.sub(r"=N\b", "=4", span))  # N stands for any number
        found.append([re.sub(r"=(['\"])(.*)\1$", r"=\2", word) for word in words if re.match(OVERRIDE, word)])
    return [words for words in found if words]


def named_files(text: str) -> list[str]:
    """Return the paths of this project in spans and blocks: a folder of it in front, or a Python file in a folder."""
    found = re.findall(r"(?<![\w/.-])((?:src|tests|benchmarks|examples)/[\w./*-]*[\w*/]|[\w-]+(?:/[\w*-]+)+\.py)", text)
    return list(dict.fromkeys(found))


def exists(name: str) -> bool:
    """Whether a path, or anything a pattern stands for, is here or in the package."""
    return any(any(folder.glob(name.rstrip("/"))) for folder in (ROOT, ROOT / "src", ROOT / "src" / "inkmill"))


@every_page
def test_settings_that_a_page_shows_are_accepted(page: Path) -> None:
    for words in settings(page.read_text("utf-8")):
        load_spec(None, words)


@every_page
def test_spec_files_that_a_page_shows_are_accepted(page: Path, tmp_path: Path) -> None:
    for block in blocks(page.read_text("utf-8"), "yaml"):
        (tmp_path / "spec.yaml").write_text(block, "utf-8")
        load_spec(tmp_path / "spec.yaml")


@every_page
def test_keys_that_a_page_names_exist(page: Path) -> None:
    named = [span.removesuffix(".*") for span in spans(page.read_text("utf-8"))]
    keys = [name for name in named if re.fullmatch(rf"(?:{SECTIONS})(?:\.\w+)+", name)]
    assert [key for key in keys if key not in KEYS and not key.endswith((".md", ".html", ".json"))] == []


@every_page
def test_verbs_that_a_page_shows_exist(page: Path) -> None:
    verbs = {*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases), "VERB"}
    text = page.read_text("utf-8")
    shown = [words[1] for words in command_lines(text)]
    shown += [span.split()[1] for span in spans(text) if re.match(r"inkmill [A-Za-z]", span)]
    assert [verb for verb in shown if verb not in verbs] == []


@every_page
def test_programs_that_a_page_shows_are_python(page: Path) -> None:
    for block in blocks(page.read_text("utf-8"), "python"):
        compile(block, page.name, "exec")


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for target, _, anchor in (link.partition("#") for link in links if "://" not in link):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@every_page
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert [name for name in named_files(page.read_text("utf-8")) if not exists(name)] == []


def test_every_page_is_on_the_map() -> None:
    listed = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text("utf-8"))
    assert sorted(listed) == sorted(page.name for page in ROOT.glob("docs/*.md") if page.name != "index.md")


def test_backbones_that_a_page_names_exist() -> None:
    pytest.importorskip("torch")
    timm = pytest.importorskip("timm")
    from inkmill.nn.backbones import BACKBONES

    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    for name in set(re.findall(r"model\.backbone=(\w+)", text)):
        assert name in BACKBONES.names() or timm.is_model(name), name


def test_the_checks_of_this_file_see_what_is_wrong() -> None:
    text = "`train.lr=1 train.num_epochs=0`\n\n    inkmill trian x/ \\\n        a.b=c model.backbone=resnet18\n"
    assert settings(text) == [["model.backbone=resnet18"], ["train.lr=1", "train.num_epochs=0"]]
    assert [words[1] for words in command_lines(text)] == ["trian"]
    files = named_files("`src/inkmill/data/`, `tests/no_such.py:12`, https://x.org/tests/a.py and `data/fit.py`")
    assert [name for name in files if not exists(name)] == ["tests/no_such.py", "data/fit.py"]
