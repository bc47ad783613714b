import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/** What it costs to keep many names held. */
final class Leases {
    /** How many threads take them: one can hold many names. */
    private static final int HOLDERS = 64;

    static void run(Order order, Peer peer) throws Exception {
        int leases = order.number("leases");
        int holders = Math.min(HOLDERS, leases);
        CountDownLatch taken = new CountDownLatch(holders);
        CountDownLatch measured = new CountDownLatch(1);
        AtomicInteger held = new AtomicInteger();
        Thread[] threads = new Thread[holders];
        long bytes = Self.residentBytes();
        for (int holder = 0; holder < holders; holder++) {
            int first = holder;
            threads[holder] = Self.start(() -> {
                List<Peer.Lock> mine = new ArrayList<>();
                for (int lease = first; lease < leases; lease += holders) {
                    Peer.Lock lock = peer.lock(order.text("prefix") + "/" + lease);
                    lock.acquire();
                    mine.add(lock);
                }
                taken.countDown();
                measured.await();
                // Only the thread that holds them can ask.
                held.addAndGet((int) mine.stream().filter(Peer.Lock::held).count());
            });
        }
        taken.await();
        long began = Self.now();
        double cpu = Self.cpuSeconds();
        Self.sleepUntil(began + order.seconds("seconds"));
        cpu = Self.cpuSeconds() - cpu;
        long lasted = Self.now() - began;
        bytes = Self.residentBytes() - bytes;
        measured.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("leases", leases);
        said.put("cpu_percent", 100 * cpu / (lasted / 1e6));
        said.put("bytes_per_lease", bytes / leases);
        said.put("held", held.get());
        Self.say(said);
        // Not by way of closing: it would be told about every lease that is no longer renewed.
        Self.exit(0);
    }
}
