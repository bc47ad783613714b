import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** Redisson and Curator as contestants (see ../README.md). A task is a thread: to both libraries it is the owner. */
public final class Driver {
    public static void main(String[] args) {
        // Before the first logger is made; what is left goes to standard error.
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        try {
            Order order = new Order(args[0]);
            if (order.text("do").equals("list")) {
                list();
            } else {
                try (Peer peer = connect(order)) {
                    obey(order, peer);
                }
            }
            Self.exit(0);
        } catch (Throwable error) {
            Self.fail(error);
        }
    }

    private static void list() throws IOException {
        String version = Peer.version("org.redisson", "redisson");
        String redisson = "watchdog timeout ttl_ms, no lease time, else the defaults (64 connections, renews every third of the timeout)";
        listed("redisson-rlock", "redis", "org.redisson:redisson", version, redisson);
        listed("redisson-fair", "redis", "org.redisson:redisson", version,
            redisson + ", but 25 subscriptions per connection, not 5: it fails with more than 250 waiting threads");
        listed("redisson-fenced", "redis", "org.redisson:redisson", version, redisson + "; lockAndGetToken");
        listed("curator-mutex", "zookeeper", "org.apache.curator:curator-recipes", Peer.version("org.apache.curator", "curator-recipes"),
            "session timeout ttl_ms (within limits of the server), ExponentialBackoffRetry(1000, 3); a mutex for each thread");
    }

    private static void listed(String peer, String store, String library, String version, String settings) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("peer", peer);
        said.put("store", store);
        said.put("library", library);
        said.put("version", version);
        said.put("settings", settings);
        said.put("renews", true);
        Self.say(said);
    }

    private static Peer connect(Order order) throws Exception {
        String name = order.text("peer");
        int ttlMillis = order.number("ttl_ms");
        return name.equals("curator-mutex")
            ? new CuratorPeer(order.urls(), ttlMillis)
            : new RedissonPeer(name, order.urls().get(0), ttlMillis);
    }

    private static void obey(Order order, Peer peer) throws Exception {
        String what = order.text("do");
        switch (what) {
            case "pairs":
                Pairs.run(order, peer);
                break;
            case "hot":
                Hot.run(order, peer);
                break;
            case "hold":
                peer.lock(order.text("name")).acquire();
                System.out.println("held");
                new CountDownLatch(1).await();
                break;
            case "take":
                take(order, peer);
                break;
            case "leases":
                Leases.run(order, peer);
                break;
            default:
                throw new IllegalArgumentException("no such order: " + what);
        }
    }

    private static void take(Order order, Peer peer) throws Exception {
        Peer.Lock lock = peer.lock(order.text("name"));
        // Loads the clock while nobody waits for it.
        Self.now();
        System.out.println("asking");
        lock.acquire();
        long got = Self.now();
        Self.say(Map.of("got_us", got));
        lock.release();
    }
}
