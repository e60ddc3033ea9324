"""The week's questions with their reference replies, as pairs for `chimere train` and `chimere bench --train`.

usage: python3 -m traffic.pairs [--nights 0,1] [--most 240] > pairs.jsonl
"""
import argparse
import json
import os

from tasks.exam import items

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "week.jsonl.gz")


def pair(item):
    reply = {"role": "assistant", "content": item.get("answer", ""), "reasoning_content": item.get("think", "")}
    if item.get("tool_calls"):
        reply["tool_calls"] = item["tool_calls"]
    return {"id": item["id"], "messages": item["messages"], "tools": item.get("tools") or [], "reply": reply}


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--nights", default="0,1,2,3,4,5,6")
    args.add_argument("--most", type=int, default=1 << 30)
    args = args.parse_args()
    nights = {int(n) for n in args.nights.split(",")}
    chosen = [item for item in items(FILE) if item["night"] in nights]
    for item in chosen[:args.most]:
        print(json.dumps(pair(item), ensure_ascii=False))
