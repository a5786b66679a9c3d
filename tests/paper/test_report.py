import base64
import json
from html.parser import HTMLParser

import pytest

from klover.paper import report

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
VOID = {"meta", "img", "br", "link"}
CLOCK = {"table": "wall-clock", "dataset": "boston", "method": "fkl-vi", "batch": 1, "num_steps": 200, "seconds": 1.0}


class Page(HTMLParser):
    """What a browser would see: balanced tags, texts, addresses."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.identifiers: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.addresses += [attributes[name] or "" for name in ("src", "href") if name in attributes]
        self.identifiers += [attributes["id"] or ""] if "id" in attributes else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def write(folder, *rows):
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def parse(folder) -> Page:
    path = report.write(folder)
    assert path == folder / "report.html"
    parsed = Page(path.read_text(encoding="utf-8"))
    assert not parsed.open
    return parsed


def test_page_asks_nothing_of_the_network(tmp_path):
    write(tmp_path, CLOCK | {"device": "cpu"})
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "modes.png").write_bytes(PIXEL)
    parsed = parse(tmp_path)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in parsed.addresses)
    assert not {"script", "link", "iframe"} & set(parsed.tags)
    style = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "http:" not in style
    assert "https:" not in style
    assert "url(" not in style
    assert "@import" not in style


def test_contents_lead_to_their_sections(tmp_path):
    write(tmp_path, CLOCK | {"device": "cpu"})
    parsed = parse(tmp_path)
    targets = [address.removeprefix("#") for address in parsed.addresses if address.startswith("#")]
    assert targets == parsed.identifiers == ["wall-clock", "figures", "commands"]


def test_tables_hold_the_cells_and_the_notes(tmp_path):
    write(tmp_path, CLOCK | {"device": "cpu"}, CLOCK | {"device": "cpu", "method": "rkl-vi", "seconds": 2.0})
    texts = parse(tmp_path).texts
    assert {"FKL VI", "783.10", "862.93", "Seconds per fit"} <= set(texts)
    assert "FKL VI takes 0.50 times as long as RKL VI in batches of 1 on cpu." in texts
    assert "Made from 2 measurements on cpu." in texts


def test_everything_is_escaped(tmp_path):
    folder = tmp_path / "a & <b>"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / 'x"<i>.png').write_bytes(PIXEL)
    (folder / "figures" / 'x"<i>.json').write_text(json.dumps({"caption": "k < 0.7 & <script>alert(1)</script>"}))
    write(folder, CLOCK | {"device": "<b>H200</b> & co"})
    parsed = parse(folder)
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "script" not in parsed.tags
    assert not {"b", "i"} & set(parsed.tags)
    assert "k < 0.7 & <script>alert(1)</script>" in parsed.texts
    assert "k &lt; 0.7 &amp; &lt;script&gt;" in text
    assert "<b>H200</b> & co" in parsed.texts
    assert any("a & <b>'" in line for line in parsed.texts)


def test_figures_are_embedded_in_the_order_of_their_names(tmp_path):
    (tmp_path / "figures").mkdir()
    for name, caption in (("two", "The second."), ("one", "The first.")):
        (tmp_path / "figures" / f"{name}.png").write_bytes(PIXEL + name.encode())
        (tmp_path / "figures" / f"{name}.json").write_text(json.dumps({"caption": caption}))
    parsed = parse(tmp_path)
    images = [address.split(",")[1] for address in parsed.addresses if address.startswith("data:")]
    assert [base64.b64decode(image) for image in images] == [PIXEL + b"one", PIXEL + b"two"]
    assert parsed.texts.index("The first.") < parsed.texts.index("The second.")


def test_figure_without_words_goes_by_its_name(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "modes.png").write_bytes(PIXEL)
    assert "modes" in parse(tmp_path).texts


@pytest.mark.parametrize("words", ["{", "{}", "[]"])
def test_damaged_words_of_a_figure_are_named(tmp_path, words):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "modes.png").write_bytes(PIXEL)
    (tmp_path / "figures" / "modes.json").write_text(words)
    with pytest.raises(ValueError, match=r"modes\.json is no JSON object with a caption"):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_empty_folder_names_the_commands(tmp_path):
    texts = parse(tmp_path).texts
    commands = {name: command.format(folder=tmp_path) for name, command in report.COMMANDS.items()}
    assert commands["tables"] in texts
    assert commands["figures"] in texts
    assert "\n".join(commands.values()) in texts


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.*Run the experiments first"):
        report.write(tmp_path / "nowhere")


def test_page_is_replaced_whole(tmp_path):
    (tmp_path / "report.html").write_text("old")
    write(tmp_path, CLOCK | {"device": "cpu"})
    parse(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.jsonl"]


def test_page_suits_dark_screens_and_narrow_ones(tmp_path):
    write(tmp_path, CLOCK | {"device": "cpu"})
    report.write(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport" content="width=device-width' in text
    assert text.count('class="scroll"') == text.count("<table>") == 1
