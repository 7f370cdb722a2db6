"""Runs a peer's program in several processes of the peer's own environment.

``processes.py PROGRAM COUNT UNTIL CLIENT IN OUT STATE [JOB]`` starts each as ``PROGRAM INDEX PORTS CLIENT IN OUT STATE
[JOB]``. PORTS are free, one for each process, for those that talk to each other. Each process prints the monotonic time
of its first record. UNTIL is ``exited``, the processes end by themselves, or ``committed``: they end once the consumer
group OUT has committed all records. Prints one JSON object: records, and seconds from the first record to that end.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer, TopicPartition
from login import properties

PARTITIONS = 4


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main(program: str, count: str, until: str, client: str, topic: str, output: str, *others: str) -> None:
    consumer = Consumer({**properties(client), "group.id": output, "enable.auto.commit": False})
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions]
    ports = ",".join(map(str, free_ports(int(count))))
    children = [
        subprocess.Popen(
            [sys.executable, program, str(index), ports, client, topic, output, *others],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(int(count))
    ]
    firsts = list[float]()

    def note(child: subprocess.Popen[str]) -> None:
        firsts.extend(float(line) for line in child.stdout or ())

    readers = [threading.Thread(target=note, args=(child,), daemon=True) for child in children]
    for reader in readers:
        reader.start()
    try:
        if until == "committed":
            while any(
                at.offset < end for at, end in zip(consumer.committed(partitions, timeout=30), ends, strict=True)
            ):
                if any(child.poll() for child in children):
                    break
                time.sleep(0.05)
            ended = time.monotonic()
            for child in children:
                child.send_signal(signal.SIGTERM)
        for child in children:
            child.wait()
        if until == "exited":
            ended = time.monotonic()
        failed = [child.returncode for child in children if child.returncode not in (0, -signal.SIGTERM)]
        if failed:
            sys.exit(f"a process ended with code {failed[0]}")
    finally:
        for child in children:
            child.kill()
    for reader in readers:
        reader.join()
    print(json.dumps({"records": sum(ends), "seconds": ended - min(firsts)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
