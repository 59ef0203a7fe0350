#!/usr/bin/env python3
"""Draws a kernel receipt as an SVG: bytes that must move against the rate reached, under the measured read bandwidth.

    bench/plot_roofline.py bench/results/kernel-h200.json docs/kernels-hopper.svg
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 420, 62, 48, 30, 150
COLOURS = {"native": "#444444", "k16v8": "#1f77b4", "k8v16": "#9467bd", "k8v8": "#2ca02c",
           "k8v8-prebias": "#bcbd22", "ki8v8": "#ff7f0e", "ki8v8-prebias": "#d62728", "k8v8-prebias-all": "#8c564b",
           "ki8v8-prebias-all": "#e377c2"}


def main():
    report = json.load(open(sys.argv[1]))
    rows = [r for r in report["rows"] if not r["ragged"]]
    low = math.log10(min(r["bytes"] for r in rows)) - 0.1
    high = math.log10(max(r["bytes"] for r in rows)) + 0.1
    peak = report["read_bandwidth_tbps"]

    def x(size):
        return LEFT + (math.log10(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(tbps):
        return HEIGHT - BOTTOM - tbps / (peak * 1.08) * (HEIGHT - BOTTOM - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    out.append(f'<text x="{LEFT}" y="18">{report["device"]}: rate reached by one decode launch over the bytes it must '
               f'read</text>')
    for tick in range(0, int(peak) + 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        out.append(f'<line x1="{x(10 ** power):.1f}" x2="{x(10 ** power):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
                   f'stroke="#dddddd"/><text x="{x(10 ** power):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                   f'text-anchor="middle">1e{power}</text>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(peak):.1f}" y2="{y(peak):.1f}" stroke="#c00000" '
               f'stroke-width="1.5"/><text x="{WIDTH - RIGHT + 6}" y="{y(peak) + 4:.1f}" fill="#c00000">read '
               f'{peak:.2f}</text>')
    for r in rows:
        if r["value_scale"] == "dynamic":
            continue
        out.append(f'<circle cx="{x(r["bytes"]):.1f}" cy="{y(r["bytes"] / r["us"] / 1e6):.1f}" r="3" '
                   f'fill="{COLOURS[r["format"]]}"><title>{r["format"]} {r["num_q_heads"]}/{r["num_kv_heads"]}x'
                   f'{r["head_dim"]} b{r["batch"]} c{r["context_len"]}: {r["us"]} us</title></circle>')
    for i, (name, colour) in enumerate(COLOURS.items()):
        at = TOP + 60 + 18 * i
        out.append(f'<circle cx="{WIDTH - RIGHT + 14}" cy="{at}" r="4" fill="{colour}"/>'
                   f'<text x="{WIDTH - RIGHT + 24}" y="{at + 4}">{name}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">bytes of keys, values and '
               f'scales</text><text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" '
               f'text-anchor="middle">TB/s</text></svg>')
    open(sys.argv[2], "w").write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
