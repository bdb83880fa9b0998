"""Pages to look at: what is on them, what a hostile log cannot do, how large they get."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

import dsh_codec as dsh
from command_line import runner
from dsh_codec.durable import OsFileSystem
from dsh_codec.html_charts import duration
from dsh_codec.html_marks import MAX_TEXT_CHARS, Markup, clip, page, table, tag
from session_files import Session, answer, attempt, call, event, open_rows, text_run
from small_logs import DEMO, HEADER, PLAIN

if TYPE_CHECKING:
    from pathlib import Path

EVIL = (
    "</title></style></svg>\"'><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><!--"
)
VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page as a browser would begin to, and refuses what should not be on it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data!r}")


ALLOWED = frozenset(
    re.findall(
        "[a-z0-9]+",
        "html head meta title style body main section h1 h2 h3 p dl div dt dd figure details "
        "summary table caption thead tbody tr th td ul li svg g path rect text bdi strong pre",
    )
)
ALLOWED_ATTRIBUTES = frozenset(
    re.findall(
        "[a-z0-9-]+",
        "charset http-equiv content name lang class viewbox role aria-label aria-hidden "
        "tabindex scope title d x y width height rx",
    )
)


def read(text: str) -> Reader:
    """Return a page that was found to be well-formed, and to load and run nothing."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert set(reader.tags) <= ALLOWED
    assert {name for name, _ in reader.attributes} <= ALLOWED_ATTRIBUTES
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text
    return reader


def shown(text: str) -> str:
    return "".join(read(text).text)


def hostile_rows(text: str) -> list[dict[str, Any]]:
    """Return rows with a text in every place that a page takes texts from."""
    tool = {"type": "tool-call", "id": text, "name": text, "arguments": text}
    source = {"kind": "model", "provider": text, "model": text}
    usage = {"inputTokens": 5, "outputTokens": 3}
    message = {
        "id": "u",
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
    }
    return [
        event("turn/start", {"turn": 1}),
        event("user/message", {"message": message}) | {"surfaceOp": "append"},
        event("step/start", {"turn": 1, "step": 1}),
        attempt(text_run(103, 1, text, "b")),
        call(
            usage,
            stream=text_run(105, 3, text, "b", "c"),
            content=[{"type": "text", "text": text}, tool],
            source=source,
        ),
        event(
            "tool/call",
            {"turn": 1, "step": 1, "callId": text, "name": text, "arguments": text},
        ),
        answer(text, text=text),
        event(f"x/{text}", text) | {"ignorable": True},
        event("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    ]


def turn_at(time: int) -> dict[str, Any]:
    return event("turn/start", {"turn": 1}) | {"time": time}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A log with a hostile text in its path, its header and its rows."""
    folder = tmp_path / EVIL.replace("/", "")
    folder.mkdir()
    session = Session(EVIL, hostile_rows(EVIL), cwd=f"/{EVIL}", parentSession=EVIL)
    path = folder / "session.v4.jsonl"
    path.write_bytes(session.data())
    return path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    return runner(capfdbinary)


# --- parts ---


def test_what_is_no_markup_is_escaped() -> None:
    made = tag("p", EVIL, tag("b", "x"), None, title=EVIL, class_=None)
    assert made.count("<") == 4
    assert made.count('"') == 2
    assert tag("p", 3, data_x=1.5) == '<p data-x="1.5">3</p>'
    assert tag("p", Markup("<i>")) == "<p><i></p>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b", "a\\x00b"),
        ("\ud800", "\\ud800"),
        ("\u202eabc", "\\u202eabc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("é😀", "é😀"),
    ],
)
def test_odd_characters_are_shown_as_escapes(text: str, expected: str) -> None:
    """Controls, lone surrogates, and what turns the direction of the text behind it."""
    assert tag("p", text) == f"<p>{expected}</p>"


def test_long_texts_are_clipped() -> None:
    assert clip("abcdefghij", 10) == "abcdefghij"
    assert clip("abcdefghijk", 10) == "abcdef…ijk"
    assert len(tag("p", "x" * 10_000_000)) < MAX_TEXT_CHARS + 10


def test_table_tells_how_many_rows_are_left_out() -> None:
    made = table(["a", "#b"], ([n, n] for n in range(25)), most=10)
    assert made.count("<tr>") == 11
    assert "… and 15 more." in made


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (12_340, "12.3 s"),
        (60_000, "1 min"),
        (125_000, "2 min 5 s"),
        (7_260_000, "2 h 1 min"),
        (90_000_000, "1 d 1 h"),
        (-1500, "-1.5 s"),
        (2**53, "104,249,991 d 8 h"),
    ],
)
def test_duration_has_a_unit_that_suits(ms: int, text: str) -> None:
    assert duration(ms) == text


# --- the page of a log ---


@pytest.mark.parametrize("name", sorted(path.name for path in DEMO.iterdir()))
def test_page_of_every_demo_log(name: str) -> None:
    text = dsh.html_report(DEMO / name)
    reader = read(text)
    assert text.startswith("<!DOCTYPE html>")
    assert "http:" not in text
    assert "https:" not in text
    with dsh.open(DEMO / name) as log:
        assert log.id in "".join(reader.text)
    headings = [
        "Timeline", "Speed", "Token cadence", "Models", "Tools", "Sizes",
    ]  # fmt: skip
    assert re.findall("<h2>([^<]*)</h2>", text) == headings
    # Who cannot see a chart is told what it is, and can read the table behind it.
    charts = text.count('role="img"')
    assert charts >= 8
    assert len(re.findall('role="img" aria-label="[^"]+"', text)) == charts
    # The keyboard reaches all that scrolls, and the charts that are not just one of many.
    assert text.count('tabindex="0" role="region" aria-label=') == text.count("<table>")
    assert len(re.findall('role="img" aria-label="[^"]+" tabindex="0"', text)) >= 8
    assert text.count("<summary>Table: ") >= 6


def test_figures_of_a_page() -> None:
    """Own arithmetic on the rows of a log."""
    rows = [
        event("turn/start", {"turn": 1}) | {"time": 1000},
        event("step/start", {"turn": 1, "step": 1}) | {"time": 1000},
        call(
            {"inputTokens": 1234, "outputTokens": 5678},
            stream=text_run(3500, 500, "a", "b", "c"),
            content=[{"type": "tool-call", "id": "t", "name": "saw", "arguments": ""}],
        )
        | {"time": 5000},
        event("tool/call", {"turn": 1, "step": 1, "callId": "t", "name": "saw"})
        | {"time": 5000},
        answer("t") | {"time": 9000},
        event("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        | {"time": 61_000},
    ]
    text = dsh.html_report(open_rows(rows))
    told = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert told == {
        "Turns": "1",
        "Steps": "1",
        "Model calls": "1",
        "Failed calls": "0",
        "Input tokens": "1.23k",
        "Read from cache": "unknown",
        "Output tokens": "5.68k",
        "Tool calls": "1",
        "Busy time": "1 min",
        "File": f"{len(Session('s', rows).data()) / 1000:.1f} kB",
    }
    assert "1 attempt: p50 2.5 s, p90 2.5 s, p99 2.5 s" in text  # First token.
    assert "p50 5.68k" in text  # 5678 tokens in one second.
    assert "3 deltas in 1 s" in text
    assert '<td>saw</td><td class="figure">1</td>' in text
    assert "4 s · 1 timed" in text
    assert '<td class="figure">1,234</td>' in text


def test_content_is_shown_only_when_asked_for() -> None:
    log = open_rows(hostile_rows("secret word"))
    assert "secret word" in shown(dsh.html_report(log, content=True))
    # Names of models, tools and event types are no content.
    rows = hostile_rows("secret word")
    text = json.dumps(rows).replace('"name": "secret word"', '"name": "tool"')
    text = text.replace('"model": "secret word"', '"model": "model"')
    text = text.replace("x/secret word", "x/y")
    assert "secret" not in dsh.html_report(open_rows(json.loads(text)))


@pytest.mark.parametrize("content", [False, True])
def test_hostile_log_cannot_break_out(hostile: Path, content: bool) -> None:  # noqa: FBT001 - a parameter of the test
    text = dsh.html_report(hostile, content=content)
    found = shown(text)
    assert "<script>document.title" in found
    assert "<img" not in text
    assert "Content-Security-Policy" in text
    assert "default-src &#x27;none&#x27;" in text


def test_style_is_the_one_that_the_policy_allows() -> None:
    """The browser refuses any other; so it would refuse ours after a change of one of them."""
    from base64 import b64encode
    from hashlib import sha256

    text = page("t")
    (style,) = re.findall("<style>(.*)</style>", text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src &#x27;sha256-{digest}&#x27;;" in text
    assert " style=" not in text


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb` or `#rgb`. Source: WCAG 2.2."""
    digits = colour.lstrip("#")
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough(scheme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text (1.4.3), 3 for marks (1.4.11)."""
    light, dark = re.findall(r":root\{([^}]*)\}", page("t"))
    colours = dict(
        part.strip().split(":")
        for part in (light if scheme == "light" else dark).split(";")
    )

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(colours[one]), luminance(colours[other])))[::-1]
        return (high + 0.05) / (low + 0.05)

    for ground in ("--page", "--card"):
        for text in ("--ink", "--soft"):
            assert contrast(text, ground) >= 4.5
        for mark in ("--a", "--b", "--c", "--d", "--e", "--wait", "--bad", "--focus"):
            assert contrast(mark, ground) >= 3, mark


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [attempt([])],
        [attempt([{"type": "nonsense"}])],
        [attempt([{"type": "text-chunks", "time0": "x"}])],
        [attempt(text_run(10, -5, "a", "b", "c"), turn=9, step=9)],
        [turn_at(-(2**53) + 1), turn_at(2**53 - 1)],
        [turn_at(50), turn_at(40)],
        [call({}, stream=text_run(2**52, 2**40, *"abc"))],
        [call({"outputTokens": 2**53 - 1}, stream=text_run(5, 0, "a", "b"))],
        [event("tool/call", {"turn": 1, "step": 1, "callId": "a"}), answer("a")],
        [event("tool/call", {"callId": 5}), event("turn/start", None)],
    ],
    ids=range(11),
)
@pytest.mark.parametrize("generation", [2, 4])
def test_odd_logs_have_pages(rows: list[dict[str, Any]], generation: int) -> None:
    text = dsh.html_report(open_rows(rows, generation=generation))
    read(text)
    assert not re.search(
        r"\b(nan|inf)\b", re.sub("<style>.*</style>", "", text, flags=re.DOTALL)
    )


def test_inherited_calls_are_the_parents(tmp_path: Path) -> None:
    """Spec 80 §2."""
    parent = Session("p", hostile_rows("tool"))
    child = Session("c", [])
    child.fork(parent, len(parent.rows))
    log = dsh.open(child.data())
    text = dsh.html_report(log)
    assert "<dt>Model calls</dt><dd>0</dd>" in text
    assert "9 events were inherited" in text
    parent.write(tmp_path)
    child.write(tmp_path)
    assert "<dt>Model calls</dt><dd>2</dd>" in dsh.html_report(tmp_path)


def test_torn_tail_is_told_and_damage_refused(tmp_path: Path) -> None:
    assert "torn tail: what stands behind byte" in dsh.html_report(dsh.open(PLAIN[:-3]))
    (tmp_path / "log").write_bytes(HEADER + b"x\n" + PLAIN[len(HEADER) :])
    with pytest.raises(dsh.RowError) as caught:
        dsh.html_report(tmp_path / "log")
    assert caught.value.line == 2


@pytest.mark.slow
def test_size_of_a_page_is_bounded() -> None:
    """Many turns, steps, tools, models, types and long names: marks, rows and texts have bounds."""
    rows = []
    for number in range(3000):
        name = f"{number}-" + "n" * 5000
        tool = {"type": "tool-call", "id": "t", "name": name, "arguments": "{}"}
        place = {"turn": number + 1, "step": 1}
        time = 1000 * number
        rows += [
            event("turn/start", {"turn": number + 1}) | {"time": time},
            call(
                {"inputTokens": number},
                turn=number + 1,
                content=[tool],
                stream=text_run(time + 1 + number % 50, 7, *"abcdef"),
                source={"kind": "model", "provider": "p", "model": name},
            ),
            event("tool/call", place | {"callId": "t", "name": name})
            | {"time": time + 99},
            answer("t", turn=number + 1) | {"time": time + 100 + number % 300},
            event(f"x/{name}", None) | {"ignorable": True},
        ]
    text = dsh.html_report(open_rows(rows))
    assert len(text.encode()) < 3_000_000
    assert "The 60 longest of 3,000 turns" in text
    assert "The 32 longest of 3,000 attempts." in text


# --- the page of a root ---


def test_page_of_a_root(tmp_path: Path) -> None:
    rows = hostile_rows(EVIL)
    Session("one", rows, cwd="/a").write(tmp_path)
    Session("two", rows[:-1], cwd="/b").write(tmp_path)
    bad = Session("bad", rows, cwd="/c").write(tmp_path)
    bad.write_bytes(bad.read_bytes().replace(b'"seq": 3', b'"seq": 7'))
    text = dsh.html_report(tmp_path)
    read(text)
    told = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert told["Sessions"] == "3 (1 unreadable)"
    assert told["Model calls"] == "4"
    assert told["Failed calls"] == "2"
    assert told["Output tokens"] == "6"
    assert re.findall("<h2>([^<]*)</h2>", text) == [
        "Usage", "Models", "Speed", "Sessions", "Not readable",
    ]  # fmt: skip
    assert "1970-01-01" in text
    assert '<bdi title="' in text


def test_hostile_root_cannot_break_out(hostile: Path) -> None:
    (hostile.parent / "session.v4.jsonl.zstd").write_bytes(b"")
    text = dsh.html_report(hostile.parents[1])
    assert "<script>document.title" in shown(text)


def test_session_directory_is_a_log(tmp_path: Path) -> None:
    path = Session("one", hostile_rows("x")).write(tmp_path)
    assert "<h1>Session " in dsh.html_report(path.parent)
    assert "<h1>Sessions</h1>" in dsh.html_report(tmp_path)
    with pytest.raises(FileNotFoundError):
        dsh.html_report(tmp_path / "nowhere")


# --- notebooks ---


def test_notebooks_show_little_and_escape_it(hostile: Path) -> None:
    with dsh.open(hostile) as log:
        summary = dsh.summarize(log)
        pages = [
            log._repr_html_(),
            summary._repr_html_(),
            dsh.check(hostile)._repr_html_(),
            dsh.usage(log, by=("model", "session"))._repr_html_(),
            dsh.timing(log, by=("model", "session"))._repr_html_(),
        ]
    rows = b"x\n" + PLAIN[len(HEADER) :]
    damaged = dsh.check(HEADER.replace(b"s-1", b"<b>") + rows)
    pages.append(damaged._repr_html_())
    for text in pages:
        read(text)
        assert len(text) < 20_000
    for number in (1, 3, 4):
        assert "<script>" in shown(pages[number])
    assert "</title>" in shown(pages[0])
    assert "the row is not JSON" in pages[5]
    assert "<strong>damaged</strong>" in pages[5]


def test_notebook_tables_are_bounded() -> None:
    rows = [call({"outputTokens": n}, turn=n + 1) for n in range(200)]
    log = open_rows(rows)
    for found in (dsh.usage(log, by="turn"), dsh.timing(log, by="turn")):
        text = found._repr_html_()
        assert text.count("<tr>") == 61
        assert "141 rows are left out" in text
        assert ">total</td>" in text


# --- the command ---


def test_command_writes_a_page(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for _ in range(2):  # A page that is there is replaced.
        assert run("report", DEMO / "v4", "-o", out).code == 0
        read(out.read_text("utf-8"))
    assert run("report", DEMO / "v4").lines[0] == "<!DOCTYPE html>"
    assert run("report", DEMO, "--tz", "UTC", "-o", out).code == 0
    assert "<h1>Sessions</h1>" in out.read_text("utf-8")


def test_command_writes_over_nothing_else(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(PLAIN)
    result = run("report", log, "-o", log)
    assert result.code == 2
    assert str(log) in result.errors
    assert log.read_bytes() == PLAIN
    assert run("report", log, "-o", tmp_path).code == 2


def test_page_that_cannot_be_written_leaves_the_old_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    assert run("report", DEMO / "v4", "-o", out).code == 0
    before = out.read_bytes()

    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(OsFileSystem, "write", is_full)
    assert run("report", DEMO, "-o", out).code == 2
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_command_refuses(run: Any, tmp_path: Path) -> None:
    assert run("report").code == 64
    assert run("report", tmp_path / "gone").code == 2
    assert run("report", DEMO, "--tz", "Moon/Base").code == 64
    (tmp_path / "log").write_bytes(HEADER + b"x\n" + PLAIN[len(HEADER) :])
    assert run("report", tmp_path / "log").code == 1


# --- a real browser ---

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


def browse(file: Path, tmp_path: Path, *options: str) -> str:
    """Let a browser load a page, and return what it made of it."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=2000",
        *options,
        file.as_uri(),
    ]
    done = subprocess.run(  # noqa: S603 - a browser, on our own page
        command, capture_output=True, check=True, timeout=120
    )
    return done.stdout.decode()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_browser_shows_pages_and_runs_nothing(hostile: Path, tmp_path: Path) -> None:
    """The issue: a hostile log cannot run script. Whatever ran would change the title."""
    places = {"demo": DEMO / "v4", "hostile": hostile, "root": hostile.parents[1]}
    for name, place in places.items():
        file = tmp_path / f"{name}.html"
        file.write_text(dsh.html_report(place, content=True), "utf-8")
        found = browse(file, tmp_path, "--dump-dom")
        title = re.findall("<title>([^<]*)</title>", found)[0]
        assert title.startswith("Session")
        assert title != "owned"
        assert "<script" not in found
        assert "<img" not in found
        # The browser closed nothing early: the end of the page is where we put it.
        assert re.search(
            "</section>(<p [^>]*>[^<]*</p>)?</main>\\s*</body></html>\\s*$", found
        )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_policy_stops_what_would_run(tmp_path: Path) -> None:
    """The second line of defence: even markup that was not escaped runs nothing."""
    attack = "<script>document.title='owned'</script><p onclick=\"1\" style='color:red'>x</p>"
    attack += "<img src=x onerror=\"document.title='owned'\">"
    file = tmp_path / "page.html"
    text = page("Session", Markup(attack))
    file.write_text(text, "utf-8")
    assert "<title>Session</title>" in browse(file, tmp_path, "--dump-dom")
    # Without the policy it does run, so the test can fail.
    file.write_text(re.sub("<meta http-equiv[^>]*>", "", text), "utf-8")
    assert "<title>owned</title>" in browse(file, tmp_path, "--dump-dom")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_browser_draws_in_light_and_dark(tmp_path: Path) -> None:
    """Pictures of a page differ with the scheme that the user prefers, so the style is taken."""
    file = tmp_path / "page.html"
    file.write_text(dsh.html_report(DEMO / "v4"), "utf-8")
    pictures = []
    for scheme in ("1", "0"):  # As Chromium counts: light, dark.
        out = tmp_path / f"{scheme}.png"
        browse(
            file,
            tmp_path,
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--screenshot={out}",
            "--window-size=1100,2400",
        )
        pictures.append(out.read_bytes())
    light, dark = pictures
    assert light != dark
    assert min(map(len, pictures)) > 50_000  # A blank page has some 10 kB.
