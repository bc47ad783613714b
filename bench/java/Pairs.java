import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/** How fast free names are acquired and released. */
final class Pairs {
    static void run(Order order, Peer peer) throws Exception {
        Task[] tasks = new Task[order.number("tasks")];
        long from = Self.now() + order.seconds("warmup_s");
        long end = from + order.seconds("seconds");
        Thread[] threads = new Thread[tasks.length];
        for (int task = 0; task < tasks.length; task++) {
            Peer.Lock[] locks = new Peer.Lock[order.number("names")];
            for (int name = 0; name < locks.length; name++) {
                locks[name] = peer.lock(order.text("prefix") + "/" + task + "/" + name);
            }
            Task mine = tasks[task] = new Task();
            threads[task] = Self.start(() -> mine.take(locks, from, end));
        }
        Self.sleepUntil(from);
        double cpu = Self.cpuSeconds();
        Self.sleepUntil(end);
        cpu = Self.cpuSeconds() - cpu;
        for (Thread thread : threads) {
            thread.join();
        }
        long[] took = Arrays.stream(tasks).flatMapToLong(task -> Arrays.stream(task.took, 0, task.count)).sorted().toArray();
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("pairs", took.length);
        said.put("all", Arrays.stream(tasks).mapToLong(task -> task.all).sum());
        said.put("seconds", (end - from) / 1e6);
        said.put("p50_us", percentile(took, 0.5));
        said.put("p99_us", percentile(took, 0.99));
        said.put("max_us", percentile(took, 1));
        said.put("cpu_s", cpu);
        Self.say(said);
    }

    private static long percentile(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[Math.max(0, (int) Math.ceil(sorted.length * part) - 1)];
    }

    /** What one task's counted pairs took. */
    private static final class Task {
        private long[] took = new long[1024];
        private int count;
        private long all;

        void take(Peer.Lock[] locks, long from, long end) throws Exception {
            for (int turn = 0; ; turn = (turn + 1) % locks.length) {
                long began = Self.now();
                locks[turn].acquire();
                locks[turn].release();
                all++;
                long ended = Self.now();
                if (ended >= end) {
                    return;
                }
                if (ended >= from) {
                    if (count == took.length) {
                        took = Arrays.copyOf(took, 2 * count);
                    }
                    took[count++] = ended - began;
                }
            }
        }
    }
}
