"""The exported timelines of a small job, read by the published `perfetto` package and by Python's own json.

usage: published_readers.py WINDTUNNEL JOB        exit code 77: the package is not installed (pip install perfetto protobuf)
Both readers must see the same slices, every one that begins must end, and memory must be a counter that reaches its peak.
"""
import collections
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
except ImportError as missing:
    print(f"skipped: no perfetto package ({missing})")
    sys.exit(77)

windtunnel, job = sys.argv[1:]


def opened(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


with tempfile.TemporaryDirectory() as folder:
    native, proto, chrome = (pathlib.Path(folder) / name for name in ("t.wttrace", "t.pftrace", "t.json.gz"))
    subprocess.run([windtunnel, "simulate", job, "--trace", native], check=True, stdout=subprocess.DEVNULL)
    for out in (proto, chrome):
        subprocess.run([windtunnel, "convert", native, out], check=True, stdout=subprocess.DEVNULL)
    trace = Trace()
    trace.ParseFromString(opened(proto))
    events = json.loads(opened(chrome))
    events = events["traceEvents"] if isinstance(events, dict) else events

depth = collections.Counter()
slices = counters = 0
peak = 0
for packet in trace.packet:
    if not packet.HasField("track_event"):
        continue
    event = packet.track_event
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        slices += 1
        depth[event.track_uuid] += 1
    elif event.type == TrackEvent.TYPE_SLICE_END:
        depth[event.track_uuid] -= 1
        assert depth[event.track_uuid] >= 0, "a slice ends that did not begin"
    elif event.type == TrackEvent.TYPE_COUNTER:
        counters += 1
        peak = max(peak, event.counter_value, event.double_counter_value)
in_chrome = sum(e["ph"] in "BX" for e in events)
assert slices > 0 and not any(depth.values()), f"{slices} slices, {sum(depth.values())} of them do not end"
assert slices == in_chrome, f"{slices} slices in Perfetto, {in_chrome} in Chrome's JSON"
assert counters > 0 and peak > 0, "no memory in the counters"
print(f"{slices} slices, {counters} counter values")
