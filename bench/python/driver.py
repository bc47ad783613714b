"""redis-py's Lock (asyncio) and kazoo's Lock (threads) as contestants (see ../README.md)."""

import asyncio
import itertools
import json
import math
import os
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

ACQUIRING = 256


def say(answer):
    print(json.dumps(answer), flush=True)


def now_us():
    return time.time_ns() // 1000


def cpu():
    """Seconds of user and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident():
    """The resident memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


class Pairs:
    """What the tasks of `pairs` note."""

    def __init__(self, order):
        self.seconds = order["seconds"]
        self.begin = time.monotonic_ns() + int(order["warmup_s"] * 1e9)
        self.end = self.begin + int(self.seconds * 1e9)
        self.took = []
        self.tasks = []

    def until(self, moment):
        """How many seconds are left until then."""
        return max(0, moment - time.monotonic_ns()) / 1e9

    def turns(self, of):
        """Goes round these until the end; what is done with each is a pair."""
        count = 0
        for each in itertools.cycle(of):
            asked = time.monotonic_ns()
            if asked >= self.end:
                break
            yield each
            count += 1
            done = time.monotonic_ns()
            if self.begin <= done <= self.end:
                self.took.append(done - asked)
        self.tasks.append(count)

    def tell(self, cpu_s):
        """Prints; percentiles are nearest ranks."""
        took = sorted(self.took)
        p50, p99, most = (took[math.ceil(len(took) * part) - 1] // 1000 if took else 0 for part in (0.5, 0.99, 1))
        answer = {"pairs": len(took), "all": sum(self.tasks), "seconds": self.seconds, "cpu_s": cpu_s}
        say(answer | {"p50_us": p50, "p99_us": p99, "max_us": most})


def warmup_name(order):
    return f"{order['prefix']}/warmup-{os.getpid()}"


def read_start():
    print("ready", flush=True)
    return int(sys.stdin.readline())


class Turns:
    """What the tasks of `hot` note."""

    def __init__(self, tasks, start_us):
        self.lock = threading.Lock()
        self.start_us = start_us
        self.turns = []
        self.asked = [None] * tasks
        self.cpu = cpu()

    def ask(self, task):
        with self.lock:
            self.asked[task] = now_us()

    def got(self, task):
        now = now_us()
        with self.lock:
            self.turns.append((now - self.start_us, now - self.asked[task], task))
            self.asked[task] = None

    def end(self):
        """Prints, and ends the process whatever its tasks do."""
        self.lock.acquire()  # never given back: nothing that comes after the end is noted
        now, cpu_s = now_us(), cpu() - self.cpu
        waiting = [(task, now - asked) for task, asked in enumerate(self.asked) if asked is not None]
        say({"turns": self.turns, "waiting": waiting, "cpu_s": cpu_s})
        os._exit(0)


class RedisPy:
    """Tasks of asyncio over one client. Its Lock does not renew, so there is no `leases`."""

    listing = {
        "peer": "redis-py",
        "store": "redis",
        "library": "redis",
        "settings": "redis.asyncio with hiredis, timeout as asked (default none), tries at the default 100 ms apart; "
        "one client with a connection for each task (default 100 at most)",
        "renews": False,
    }

    def __init__(self, order):
        self.order = order

    def run(self, do):
        asyncio.run(self.connected(do))

    async def connected(self, do):
        import redis.asyncio

        [url] = self.order["urls"]
        most = max(100, self.order.get("tasks", 1))
        async with redis.asyncio.from_url(url, max_connections=most) as self.client:
            await self.client.ping()
            await do(self)

    def lock(self, name):
        return self.client.lock(name, timeout=self.order["ttl_ms"] / 1000)

    async def pairs(self):
        order, pairs = self.order, Pairs(self.order)

        async def task(number):
            for turn in pairs.turns(range(order["names"])):
                async with self.lock(f"{order['prefix']}/{number}/{turn}"):
                    pass

        async def measure():
            await asyncio.sleep(pairs.until(pairs.begin))
            before = cpu()
            await asyncio.sleep(pairs.until(pairs.end))
            return cpu() - before

        cpu_s, *_ = await asyncio.gather(measure(), *(task(number) for number in range(order["tasks"])))
        pairs.tell(cpu_s)

    async def hot(self):
        order = self.order
        for _ in range(order["warmup_pairs"]):
            async with self.lock(warmup_name(order)):
                pass
        start_us = read_start()
        await asyncio.sleep((start_us - now_us()) / 1e6)
        turns = Turns(order["tasks"], start_us)

        async def task(number):
            while True:
                turns.ask(number)
                async with self.lock(order["name"]):
                    turns.got(number)

        async def end():
            await asyncio.sleep((start_us - now_us()) / 1e6 + order["seconds"])
            turns.end()

        await asyncio.gather(end(), *(task(number) for number in range(order["tasks"])))

    async def hold(self):
        await self.lock(self.order["name"]).acquire()
        print("held", flush=True)
        await asyncio.Event().wait()

    async def take(self):
        print("asking", flush=True)
        async with self.lock(self.order["name"]):
            say({"got_us": now_us()})


class Kazoo:
    """Threads over one client, whose session keeps what is held."""

    listing = {
        "peer": "kazoo",
        "store": "zookeeper",
        "library": "kazoo",
        "settings": "session timeout as asked (default 10 s), which the server may round to its limits; "
        "one client, a thread for each task",
        "renews": True,
    }

    def __init__(self, order):
        self.order = order

    def run(self, do):
        from kazoo.client import KazooClient

        hosts = ",".join(url.split("://")[-1] for url in self.order["urls"])
        self.client = KazooClient(hosts=hosts, timeout=self.order["ttl_ms"] / 1000)
        self.client.start()
        do(self)
        self.client.stop()

    def lock(self, name):
        return self.client.Lock("/" + name.lstrip("/"))

    @staticmethod
    def start(task, count):
        def checked(number):
            try:
                task(number)
            except BaseException as error:
                fail(error)

        threads = [threading.Thread(target=checked, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def pairs(self):
        order, pairs = self.order, Pairs(self.order)

        def task(number):
            locks = [self.lock(f"{order['prefix']}/{number}/{i}") for i in range(order["names"])]
            for lock in pairs.turns(locks):
                with lock:
                    pass

        threads = self.start(task, order["tasks"])
        time.sleep(pairs.until(pairs.begin))
        before = cpu()
        time.sleep(pairs.until(pairs.end))
        cpu_s = cpu() - before
        for thread in threads:
            thread.join()
        pairs.tell(cpu_s)

    def hot(self):
        order = self.order
        own = self.lock(warmup_name(order))
        for _ in range(order["warmup_pairs"]):
            with own:
                pass
        start_us = read_start()
        time.sleep(max(0, start_us - now_us()) / 1e6)
        turns = Turns(order["tasks"], start_us)

        def task(number):
            lock = self.lock(order["name"])
            while True:
                turns.ask(number)
                with lock:
                    turns.got(number)

        self.start(task, order["tasks"])
        time.sleep(max(0, (start_us - now_us()) / 1e6 + order["seconds"]))
        turns.end()

    def hold(self):
        self.lock(self.order["name"]).acquire()
        print("held", flush=True)
        threading.Event().wait()

    def take(self):
        lock = self.lock(self.order["name"])
        print("asking", flush=True)
        with lock:
            say({"got_us": now_us()})

    def leases(self):
        order = self.order
        memory = resident()
        locks = [self.lock(f"{order['prefix']}/{i}") for i in range(order["leases"])]
        with ThreadPoolExecutor(ACQUIRING) as threads:
            for _ in threads.map(lambda lock: lock.acquire(), locks):
                pass
        before, begin = cpu(), time.monotonic()
        time.sleep(order["seconds"])
        cpu_percent = 100 * (cpu() - before) / (time.monotonic() - begin)
        memory = resident() - memory
        # A lock does not notice that its session is lost; its node does.
        nodes = [self.client.exists_async(f"{lock.path}/{lock.node}") for lock in locks]
        say(
            {
                "leases": len(locks),
                "cpu_percent": cpu_percent,
                "bytes_per_lease": memory // len(locks),
                "held": sum(1 for node in nodes if node.get()),
            }
        )


PEERS = [RedisPy, Kazoo]


def fail(error):
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def main():
    order = json.loads(sys.argv[1])
    if order["do"] == "list":
        for peer in PEERS:
            say(peer.listing | {"version": version(peer.listing["library"])})
        return
    for peer in PEERS:
        if (peer.listing["peer"], peer.listing["store"]) == (order["peer"], order["store"]):
            do = getattr(peer, order["do"], None) if order["do"] in ("pairs", "hot", "hold", "take", "leases") else None
            if do is None:
                raise ValueError(f"no such order: {order['do']}")
            peer(order).run(do)
            return
    raise ValueError(f"no such contestant: {order['peer']} over {order['store']}")


try:
    main()
except Exception as error:
    fail(error)
