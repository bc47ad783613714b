import com.google.gson.Gson;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** This process: its clock, its costs, its threads, its output and its end. */
final class Self {
    /** Wall-clock time that only ever goes forward. */
    private static final long EPOCH = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()) - System.nanoTime() / 1000;

    private Self() {}

    /** Microseconds since the Unix epoch. */
    static long now() {
        return EPOCH + System.nanoTime() / 1000;
    }

    static void sleepUntil(long time) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(time - now());
    }

    /** User and system time of this process. */
    static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    /** Without the garbage: a JVM keeps it until there is enough of it, and that says nothing about a lock. */
    static long residentBytes() throws IOException {
        System.gc();
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return 1024 * Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IOException("no VmRSS in /proc/self/status");
    }

    interface Work {
        void run() throws Exception;
    }

    static Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                fail(error);
            }
        });
        thread.start();
        return thread;
    }

    static void say(Map<String, Object> what) {
        System.out.println(new Gson().toJson(what));
    }

    static void fail(Throwable error) {
        error.printStackTrace();
        exit(1);
    }

    /** Whatever other threads do. */
    static void exit(int code) {
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }
}
