import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Many tasks that want one name. */
final class Hot {
    static void run(Order order, Peer peer) throws Exception {
        Peer.Lock own = peer.lock(order.text("prefix") + "/warm-up-" + ProcessHandle.current().pid());
        for (int pair = order.number("warmup_pairs"); pair > 0; pair--) {
            own.acquire();
            own.release();
        }
        Task[] tasks = new Task[order.number("tasks")];
        CountDownLatch go = new CountDownLatch(1);
        for (int task = 0; task < tasks.length; task++) {
            Task mine = tasks[task] = new Task(task);
            Peer.Lock lock = peer.lock(order.text("name"));
            Self.start(() -> {
                go.await();
                mine.take(lock);
            });
        }
        System.out.println("ready");
        long from = Long.parseLong(new BufferedReader(new InputStreamReader(System.in)).readLine().trim());
        long end = from + order.seconds("seconds");
        for (Task task : tasks) {
            task.from = from;
            task.end = end;
        }
        Self.sleepUntil(from);
        double cpu = Self.cpuSeconds();
        go.countDown();
        Self.sleepUntil(end);
        cpu = Self.cpuSeconds() - cpu;
        StringBuilder turns = new StringBuilder();
        StringBuilder waiting = new StringBuilder();
        for (Task task : tasks) {
            task.addTo(turns, waiting);
        }
        // By hand: others wait for the end of this process, and Gson would first have to be loaded.
        System.out.println("{\"turns\":[" + turns + "],\"waiting\":[" + waiting + "],\"cpu_s\":" + cpu + "}");
        // Not by way of closing: tasks still wait.
        Self.exit(0);
    }

    /** One task's turns, as they were at the end even if they are read a little later. */
    private static final class Task {
        private final int task;
        private final List<long[]> turns = new ArrayList<>();
        private long from;
        private long end;
        /** Since when it has been waiting. */
        private long asked;
        private boolean waits;

        Task(int task) {
            this.task = task;
        }

        void take(Peer.Lock lock) throws Exception {
            while (ask()) {
                lock.acquire();
                got();
                lock.release();
            }
        }

        private synchronized boolean ask() {
            asked = Self.now();
            return waits = asked < end;
        }

        private synchronized void got() {
            long got = Self.now();
            if (got < end) {
                waits = false;
                turns.add(new long[] {got - from, got - asked, task});
            }
        }

        synchronized void addTo(StringBuilder allTurns, StringBuilder waiting) {
            turns.forEach(turn -> add(allTurns, turn));
            if (waits) {
                add(waiting, task, end - asked);
            }
        }

        private static void add(StringBuilder list, long... numbers) {
            list.append(list.length() == 0 ? "[" : ",[").append(numbers[0]);
            for (int next = 1; next < numbers.length; next++) {
                list.append(',').append(numbers[next]);
            }
            list.append(']');
        }
    }
}
