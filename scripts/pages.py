"""Pages of figures, rendered from templates and from results that runs wrote.

A template is `bench/pages/NAME.md`, its page `docs/NAME.md`. A result is `bench/results/NAME/PART.json`:

    {"command": what was run, "build": its commit or null, "date": …, "machine": …, "text": what it printed}

`build` is null for results that were on a page before runs were recorded; `page` then says since which commit. In a template,
`{{text PART | COMMAND}}` stands for what the run printed, or for a line that says that it was not run on the present build;
`{{= EXPRESSION}}` for a figure made of results, with what the block `{{% … %}}` defines (Python; both see `rows` and `number`);
`{{results}}` for the table of what was run where. A figure that stands on a page in no other way was written by nobody.

Pages that one program writes whole (Table 1 of a paper, cell by cell) have a receipt, `bench/results/NAME.json`, with the hash of
what it wrote: whatever was changed by hand since then does not have it. Behind that stands a section made of the receipt, which says
of which build the page is.
"""

import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATES, RESULTS, PAGES = ROOT / "bench/pages", ROOT / "bench/results", ROOT / "docs"
# Between what a program wrote and what its receipt says of it.
PROVENANCE = "\n## What was run\n\n"


def commit():
    """The commit that was measured, with `-dirty` if what it is built of was changed: the pages, which a run has just written, are not of that."""
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    is_changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs", ":(exclude)bench/results")
    return git("describe", "--always", "--abbrev=12") + ("-dirty" if is_changed else "")


def machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} processors ({platform.machine()}), {memory:.0f} GiB"


def stamp(command):
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"command": command, "build": commit(), "date": today, "machine": machine()}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def record(page, part, command, text):
    """Keeps what a run printed."""
    write(RESULTS / page / f"{part}.json", {**stamp(command), "text": text.strip()})


def receipt(page, command):
    """Keeps that a program wrote this page as it is, and says so on it."""
    write(RESULTS / f"{page}.json", {**stamp(command), "sha256": digest(page)})
    (PAGES / f"{page}.md").write_text(whole(page))


def written(page):
    """What the program wrote of a whole page: all but the section that its receipt gives."""
    return (PAGES / f"{page}.md").read_text().split(PROVENANCE)[0]


def whole(page):
    """A whole page with the section that its receipt gives."""
    return written(page) + PROVENANCE + provenance({"all": json.loads((RESULTS / f"{page}.json").read_text())}) + "\n"


def digest(page):
    return hashlib.sha256(written(page).encode()).hexdigest()


def unknown_build(result):
    """Why nobody could tell of which build a result is, or None."""
    if result["build"]:
        return None
    if not result.get("page"):
        return "neither a build, nor the commit since which it was on a page before runs were recorded"
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        return None  # old commits are not here to be looked up
    found = subprocess.run(["git", "cat-file", "-e", f"{result['page']}^{{commit}}"], cwd=ROOT, capture_output=True)
    return f"`{result['page']}` is no commit of this repository" if found.returncode else None


def provenance(results):
    """The table of what was run where, of results by the part that they are."""
    lines = ["| part | build | date | machine | command |", "|---|---|---|---|---|"]
    for part, result in results.items():
        build = f"`{result['build']}`" if result["build"] else f"not recorded; on this page since `{result['page']}`"
        lines.append(f"| {part} | {build} | {result['date']} | {result['machine']} | `{result['command']}` |")
    if any((result["build"] or "").endswith("-dirty") for result in results.values()):
        lines += ["", "`-dirty`: that commit with changes that were not committed."]
    if len({result["build"] or result["page"] for result in results.values()}) > 1:
        lines += ["", "The parts are of more than one build: compare within a part only."]
    return "\n".join(lines)


def number(cell):
    """The first number in a cell."""
    found = re.search(r"-?[\d,]+(?:\.\d+)?", cell)
    if not found:
        raise ValueError(f"there is no number in {cell!r}")
    return float(found.group().replace(",", ""))


def tables(text):
    """Each table of a text, its rows as dictionaries by column."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(lines[0], line)) for line in lines[2:]])
    return found


class Page:
    def __init__(self, name):
        self.name = name
        self.template = (TEMPLATES / f"{name}.md").read_text()
        self.results = {path.stem: json.loads(path.read_text()) for path in sorted((RESULTS / name).glob("*.json"))}
        self.used = set()

    def rows(self, part, index=0):
        self.used.add(part)
        return tables(self.results[part]["text"])[index]

    def text(self, part, command):
        self.used.add(part)
        if part not in self.results:
            return f"*Not measured on the present build: `{command}`.*"
        return self.results[part]["text"]

    def typed(self):
        """Rows of tables in the template with digits that no directive gives: figures that somebody typed."""
        rows = re.sub(r"\{\{.*?\}\}", "", self.template, flags=re.S).splitlines()
        return [row for row in rows if row.startswith("|") and re.search(r"\d", row)]

    def provenance(self):
        return provenance(self.results) if self.results else "Nothing was run on the present build."

    def render(self):
        scope = {"rows": self.rows, "number": number}
        for block in re.findall(r"\{\{%(.*?)%\}\}", self.template, re.S):
            exec(block, scope)
        text = re.sub(r"\{\{%.*?%\}\}\n?", "", self.template, flags=re.S)
        text = re.sub(r"\{\{= (.*?) \}\}", lambda found: str(eval(found[1], scope)), text)
        text = re.sub(r"\{\{text (\S+) \| (.*?)\}\}", lambda found: self.text(found[1], found[2].strip()), text)
        text = text.replace("{{results}}", self.provenance())
        idle = set(self.results) - self.used
        if idle or "{{" in text:
            raise ValueError(f"{self.name}: results that the template does not show: {sorted(idle)}, or a directive nobody knows")
        return text.lstrip("\n")


def templates():
    return sorted(path.stem for path in TEMPLATES.glob("*.md"))
