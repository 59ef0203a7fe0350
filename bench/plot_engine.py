#!/usr/bin/env python3
"""Draws answers of `asymkv bench engine --json` (same model and threads) as an SVG: milliseconds a decoded token takes
at each depth, beside llama.cpp's where it was run, with the floor that memory reads set.

    bench/plot_engine.py bench/results/engine-*.json docs/performance.svg
"""

import json
import sys

WIDTH, LEFT, TOP, ROW, BAR = 760, 190, 56, 46, 15
OURS, THEIRS, FLOOR = "#1f77b4", "#bbbbbb", "#c00000"


def text(x, y, words, anchor="start", colour="#000000"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def main():
    reports = [json.load(open(path)) for path in sys.argv[1:-1]]
    report = reports[0]
    rows = [r | {"kernels": of["kernels"]} for of in reports for r in of["rows"] if r["test"] == "decode"]
    times = [r["ms_per_token"] for r in rows]
    times += [1e3 / r["llama_tokens_per_s"]["median"] for r in rows if r["llama_tokens_per_s"]]
    scale = (WIDTH - LEFT - 90) / max(times)
    height = TOP + ROW * len(rows) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    out.append(text(10, 20, f'{report["model"]}, {report["threads"]} threads: milliseconds of one '
                            f'decoded token'))
    out.append(text(LEFT, 42, "asymkv", colour=OURS) + text(LEFT + 60, 42, "llama.cpp", colour="#777777") +
               text(LEFT + 130, 42, "bytes over the bandwidth measured in the run", colour=FLOOR))
    for i, row in enumerate(rows):
        at = TOP + ROW * i
        out.append(text(LEFT - 10, at + 16, f'{row["kv"]}, {row["kernels"].rsplit("-", 1)[1]}, depth {row["depth"]}', "end"))
        bars = [(row["ms_per_token"], OURS)]
        if row["llama_tokens_per_s"]:
            bars.append((1e3 / row["llama_tokens_per_s"]["median"], THEIRS))
        for j, (ms, colour) in enumerate(bars):
            y = at + BAR * j
            out.append(f'<rect x="{LEFT}" y="{y}" width="{ms * scale:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            out.append(text(LEFT + ms * scale + 6, y + 11, f"{ms:.1f}"))
        x = LEFT + row["read_floor_ms"] * scale
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{at - 2}" y2="{at + 2 * BAR}" stroke="{FLOOR}" '
                   f'stroke-width="1.5"/>')
    out.append("</svg>")
    open(sys.argv[-1], "w").write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
