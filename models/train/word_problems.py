"""Short word problems of two or three steps over small integers, with a worked solution that ends in "#### 14"."""

import words as w


def _chain(r, a, he, b, items):
    """A stock that changes two or three times -> (text, steps)."""
    value = r.randint(3, 30)
    text, steps = f"{a} has {value} {items}.", []
    subject = he.capitalize()
    for _ in range(r.randint(2, 3)):
        kind = r.randint(0, 5)
        divisors = [d for d in (2, 3, 4, 5) if value % d == 0]
        if kind == 4 and value <= 30:
            n = r.randint(2, 3)
            text += f" Then {he} {'doubles' if n == 2 else 'triples'} the number of {items}."
            steps.append((value, "*", n))
        elif kind == 5 and value > 3 and divisors:
            n = r.choice(divisors)
            text += f" {subject} splits the {items} equally into {n} bags and keeps one bag."
            steps.append((value, "/", n))
        elif kind in (2, 3) and value > 3:
            n = r.randint(1, min(value - 1, 20))
            text += r.choice([f" {subject} gives {n} {items} to {b}.", f" {subject} loses {n} {items}.",
                              f" {subject} sells {n} {items}."])
            steps.append((value, "-", n))
        else:
            n = r.randint(2, 20)
            text += r.choice([f" {subject} buys {n} more {items}.", f" {subject} finds {n} {items}.",
                              f" {b} gives {a} {n} {items}."])
            steps.append((value, "+", n))
        value = apply(steps[-1])
    return text + f" How many {items} does {a} have now?", steps


def _shopping(r, a, he, b, items):
    p, q, m, n = r.randint(2, 9), r.randint(2, 9), r.randint(2, 6), r.randint(2, 6)
    first, second = r.sample(w.GOODS, 2)
    return (f"A {first} costs {p} dollars and a {second} costs {q} dollars. {a} buys {m} {first}s and {n} {second}s. "
            f"How many dollars does {he} pay?", [(m, "*", p), (n, "*", q), (m * p, "+", n * q)])


def _boxes(r, a, he, b, items):
    boxes, each = r.randint(2, 9), r.randint(3, 12)
    taken = r.randint(1, min(20, boxes * each - 1))
    return (f"There are {boxes} boxes with {each} {items} in each box. {a} takes {taken} {items}. How many {items} are "
            "left?", [(boxes, "*", each), (boxes * each, "-", taken)])


def _sharing(r, a, he, b, items):
    friends = r.randint(2, 6)
    total = friends * r.randint(3, 12)
    mine = r.randint(1, total - 1)
    return (f"{a} has {mine} {items} and {b} has {total - mine} {items}. They share all of them equally among {friends} "
            f"friends. How many {items} does each friend get?", [(mine, "+", total - mine), (total, "/", friends)])


def _toys(r, a, he, b, items):
    rate, monday, tuesday = r.randint(2, 9), r.randint(2, 6), r.randint(2, 6)
    return (f"{a} makes {rate} toys per hour. {he.capitalize()} works {monday} hours on Monday and {tuesday} hours on "
            f"Tuesday. How many toys does {he} make?", [(monday, "+", tuesday), (monday + tuesday, "*", rate)])


def _more_than(r, a, he, b, items):
    mine, more = r.randint(3, 30), r.randint(2, 20)
    return (f"{a} has {mine} {items}. {b} has {more} more {items} than {a}. How many {items} do they have together?",
            [(mine, "+", more), (mine, "+", mine + more)])


def _times_as_many(r, a, he, b, items):
    mine, times = r.randint(2, 15), r.randint(2, 5)
    return (f"{a} has {mine} {items}. {b} has {times} times as many {items} as {a}. How many {items} do they have "
            "together?", [(mine, "*", times), (mine, "+", mine * times)])


def _change(r, a, he, b, items):
    count, price = r.randint(2, 8), r.randint(2, 9)
    money, good = count * price + r.randint(1, 40), r.choice(w.GOODS)
    return (f"{a} has {money} dollars. {he.capitalize()} buys {count} {good}s for {price} dollars each. How many dollars "
            f"does {he} have left?", [(count, "*", price), (money, "-", count * price)])


def _book(r, a, he, b, items):
    daily, days = r.randint(3, 12), r.randint(2, 9)
    pages = daily * days + r.randint(1, 60)
    return (f"A book has {pages} pages. {a} reads {daily} pages a day for {days} days. How many pages are left to read?",
            [(daily, "*", days), (pages, "-", daily * days)])


def _garden(r, a, he, b, items):
    rows, each = r.randint(2, 9), r.randint(3, 9)
    cut, planted = r.randint(1, min(15, rows * each - 1)), r.randint(2, 15)
    return (f"A garden has {rows} rows of {each} trees. {a} cuts {cut} trees and plants {planted} new trees. How many "
            "trees are there now?",
            [(rows, "*", each), (rows * each, "-", cut), (rows * each - cut, "+", planted)])


KINDS = [_chain, _chain, _chain, _shopping, _boxes, _sharing, _toys, _more_than, _times_as_many, _change, _book,
         _garden]


def apply(step):
    x, operator, y = step
    return {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[operator]


def word_problem(r):
    """(prompt, solution, answer)."""
    (a, he), (b, _) = r.sample(w.PEOPLE, 2)
    items = r.choice(w.ITEMS)
    text, steps = r.choice(KINDS)(r, a, he, b, items)
    solution = "".join(f" {x} {operator} {y} = {apply((x, operator, y))}." for x, operator, y in steps)
    answer = apply(steps[-1])
    return f"Question: {text}\nAnswer:", f"{solution}\n#### {answer}", answer
