"""Draws the tables of docs/benchmarks-blockd.md as SVG, with what the Blizzard paper (NSDI 2014) says in numbers beside them.

usage: scripts/blockd_figures.py      draws docs/figures/blockd-*.svg from the page as it is
"""
import math, os, re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLOURS = ["#2b6cb0", "#dd6b20", "#38a169", "#805ad5", "#718096"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 70, 20, 64, 64


def number(cell):
    found = re.search(r"-?[\d,]+(?:\.\d+)?", cell)
    return float(found.group().replace(",", "")) if found else None


def tables(page):
    """Each table of a page: its columns, and its rows as lists of cells."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found.append((rows[0], rows[2:]))
    return found


class Drawing:
    def __init__(self, title, unit, top, log=False, least=0.1):
        self.top, self.log, self.least = top, log, least
        self.parts = [f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{title}</text>']
        steps = [least * 10**power for power in range(round(math.log10(top / least)) + 1)] if log else [top * step / 5 for step in range(6)]
        for value in steps:
            y = self.y(value)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
                              f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>')
        self.parts.append(f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2:.0f})" '
                          f'text-anchor="middle">{unit}</text>')

    def y(self, value):
        share = math.log(max(value, self.least) / self.least) / math.log(self.top / self.least) if self.log else value / self.top
        return HEIGHT - BOTTOM - min(max(share, 0), 1) * (HEIGHT - TOP - BOTTOM)

    def legend(self, names, paper):
        x = LEFT
        for name, colour in [*zip(names, COLOURS), *([("the paper", None)] if paper else [])]:
            mark = f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>' if colour else \
                f'<line x1="{x}" x2="{x + 12}" y1="39" y2="39" stroke="#c53030" stroke-width="3"/>'
            self.parts.append(f'{mark}<text x="{x + 15}" y="43">{name}</text>')
            x += 30 + 7 * len(name)

    def write(self, name):
        with open(os.path.join(ROOT, "docs", "figures", f"blockd-{name}.svg"), "w") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
                       f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def bars(name, title, unit, top, groups, series, values, paper=(), log=False, least=0.1):
    """Bars in groups; `values` by group and series; `paper` as (group, series, value)."""
    drawing = Drawing(title, unit, top, log, least)
    drawing.legend(series, paper)
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    thick = room * 0.8 / len(series)

    def x(group, one):
        return LEFT + room * group + room * 0.1 + thick * one

    for group, label in enumerate(groups):
        for one, value in enumerate(values[group]):
            y = drawing.y(value)
            drawing.parts.append(f'<rect x="{x(group, one):.1f}" y="{y:.1f}" width="{thick * 0.92:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                                 f'fill="{COLOURS[one]}"><title>{label}, {series[one]}: {value:,g}</title></rect>')
        drawing.parts.append(f'<text x="{LEFT + room * (group + 0.5):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for group, one, value in paper:
        y = drawing.y(value)
        drawing.parts.append(f'<line x1="{x(group, one):.1f}" x2="{x(group, one) + thick * 0.92:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c53030" '
                             f'stroke-width="3"><title>the paper: {value:,g}</title></line>')
    drawing.write(name)


def shares(name, title, series, bounds, values, paper):
    """Lines of how many of a hundred requests wait no longer than a bound; `paper` as (bound, share)."""
    drawing = Drawing(title, "of 100 requests", 100)
    drawing.legend(series, paper)
    x = {bound: LEFT + 40 + (WIDTH - LEFT - RIGHT - 80) * at / (len(bounds) - 1) for at, bound in enumerate(bounds)}
    for bound in bounds:
        drawing.parts.append(f'<text x="{x[bound]:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">within {bound:g} ms</text>')
    for one, line in enumerate(values):
        points = " ".join(f"{x[bound]:.1f},{drawing.y(share):.1f}" for bound, share in zip(bounds, line))
        drawing.parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[one]}" stroke-width="2"/>')
    for bound, share in paper:
        y = drawing.y(share)
        drawing.parts.append(f'<line x1="{x[bound] - 9:.1f}" x2="{x[bound] + 9:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c53030" stroke-width="3">'
                             f'<title>the paper: {share}</title></line>')
    drawing.write(name)


def draw(page):
    """Draws every table of the page that answers to a figure of the paper."""
    for columns, rows in tables(page):
        first, kinds = columns[0], [column.split(",")[0] for column in columns[1:]]
        values = [[number(cell) for cell in row[1:]] for row in rows]
        labels = [row[0] for row in rows]
        if first.startswith("segment"):
            # Section 4.1: 700 MB/s of sequential writes, over 1000 of the others at 128; 222 of sequential reads and at least 400 of
            # random ones at 1.
            paper = [(3, 0, 1000), (3, 1, 700), (3, 2, 1000), (3, 3, 1000), (0, 0, 222), (0, 2, 400), (0, 3, 400)]
            bars("figure4", "Throughput by the width of a segment (Figure 4)", "MB/s", 2500, [f"{label} tracts" for label in labels], kinds, values, paper)
        elif first.startswith("one-way delay"):
            bars("figure11", "Throughput by the network's one-way delay (Figure 11)", "MB/s", 2500, [f"{label} ms" for label in labels], kinds, values)
        elif first == "mode" and len(columns) == 6:
            groups = [f"{row[0].replace(', ', ' ').replace('write-', 'w-').replace('flush-epoch', 'epoch')} ×{row[1]}" for row in rows]
            by_mode = [[number(row[3]), number(row[5])] for row in rows]
            for copies in ("1", "3"):
                chosen = [at for at, row in enumerate(rows) if row[1] == copies]
                bars(f"figure5-{copies}", f"A write of 4 KiB, copies: {copies} (Figure 5)", "ms", 35, [groups[at] for at in chosen],
                     ["acknowledged", "durable"], [by_mode[at] for at in chosen])
        elif first == "mode":
            base = number(rows[0][2])
            # Figure 9 and section 4.4: nine times a local disk for fast acknowledgements where write-through has four; the log 3 % less.
            paper = [(0, 0, 1), (1, 0, 9 / 4), (2, 0, 0.97 * 9 / 4)]
            bars("figure9", "A mail server, times what write-through does at one copy (Figure 9)", "times", 3, [f"{row[0].split(',')[0]} ×{row[1]}" for row in rows],
                 ["operations a second"], [[number(row[2]) / base] for row in rows], paper)
        elif first.startswith("users of"):
            bounds = [number(column.replace("of 100 within", "")) for column in columns[3:]]
            shares("figure10", "Requests of many users, write-through (Figure 10)", [f"{row[0]} {row[1]}" for row in rows], bounds,
                   [[number(cell) for cell in row[3:]] for row in rows], [(5, 62), (10, 85)])
        elif "not durable at the crash" in " ".join(columns):
            mixed = "1 MiB" in first
            bars("figure14" if mixed else "figure13", f"Not durable at a crash, by writes a flush : a second; {first.split(';')[0]} (Figure {14 if mixed else 13})", "KiB",
                 10000, [f"{row[0]} : {row[1]}/s" for row in rows], ["flush-epoch", "log"], [[number(row[4]), number(row[5])] for row in rows],
                 log=True, least=1)


if __name__ == "__main__":
    draw(open(os.path.join(ROOT, "docs", "benchmarks-blockd.md")).read())
