"""Joins tables of compare_with_te.py into one and counts: summarize_te.py JOINED.csv TABLE.csv …

Prints what TE refused and in which words, the distances by precision, and how many compared cases had each option. Fails where a case
failed, or where fewer than 5 compared cases had an option that some case was drawn with.
"""
import collections, csv, json, statistics, sys

LEAST = 5
LIMITS = {"fp32": 1e-4, "bf16": 1e-2}  # of the others 6e-2


def read(paths):
    rows = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                rows[path, int(row["case"])] = row
    return list(rows.values())


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def within(row):
    return row["beyond the limit"] == "0"


def within_with_fp32_scores(row):
    return (row["beyond with FP32 scores"] or row["beyond the limit"]) == "0"


def distances(rows):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["kind"], row["precision"]].append(row)
    for (kind, precision), group in sorted(groups.items()):
        text = f"{kind} {precision}: {len(group)}"
        for column in ("y", "dx", "furthest"):
            values = [float(row[column]) for row in group if row[column]]
            if values:
                text += f"; {column} median {statistics.median(values):.1e}, 95 of 100 {quantile(values, 0.95):.1e}, largest {max(values):.1e}"
        print(f"{text}; within {sum(map(within, group))}")


def causes(rows):
    """How many are within the limits where TE's furthest gradient stays within them over moved inputs, and where it rounds no scores."""
    moved = [row for row in rows if row["kind"] in ("layer", "norm-output")]
    steady = [row for row in moved if float(row["TE itself"]) <= LIMITS.get(row["precision"], 6e-2)]
    print(f"moved inputs: {len(moved)}; TE itself within the limit: {len(steady)}; of these within: {sum(map(within, steady))},"
          f" against FP32 scores {sum(map(within_with_fp32_scores, steady))}")
    scores = [row for row in rows if row["attention"] == "PyTorch"]
    print(f"attention in PyTorch: {len(scores)}; of these within: {sum(map(within, scores))},"
          f" against FP32 scores {sum(map(within_with_fp32_scores, scores))}")


def main(output, *paths):
    rows = read(paths)
    with open(output, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    compared = [row for row in rows if not row["refused"]]
    failed = [row for row in rows if row["failed"] or row["refused"].startswith("OwnMistake")]
    print(f"{len(rows)} cases, {len(compared)} compared, {len(rows) - len(compared)} refused by TE, {len(failed)} failed")
    print("attention:", dict(collections.Counter(row["attention"] for row in compared if row["attention"])))
    for said, count in collections.Counter(row["refused"] for row in rows if row["refused"]).most_common():
        print(f"refused {count}: {said}")
    distances(compared)
    causes(compared)
    drawn, counts = (collections.Counter(option for row in some for option in json.loads(row["call"])["options"])
                     for some in (rows, compared))
    for option, count in sorted(drawn.items()):
        print(f"  {option}: {counts[option]} of {count}")
    seldom = [option for option in drawn if counts[option] < LEAST]
    if seldom:
        print(f"options with fewer than {LEAST} compared cases: {seldom}")
    sys.exit(bool(failed or seldom))


if __name__ == "__main__":
    main(*sys.argv[1:])
