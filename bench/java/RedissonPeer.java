import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Redisson's locks. No lease time is ever given, so that the watchdog renews what is held. */
final class RedissonPeer implements Peer {
    private final String kind;
    private final RedissonClient client;

    RedissonPeer(String kind, String url, int ttlMillis) {
        this.kind = kind;
        Config config = new Config();
        config.setLockWatchdogTimeout(ttlMillis);
        SingleServerConfig server = config.useSingleServer().setAddress(url);
        if (kind.equals("redisson-fair")) {
            // Every thread that waits has a channel of its own, and the default has room for 50 * 5: more end in errors.
            server.setSubscriptionsPerConnection(25);
        }
        client = Redisson.create(config);
    }

    @Override
    public Lock lock(String name) {
        switch (kind) {
            case "redisson-rlock":
                return new Owned(client.getLock(name));
            case "redisson-fair":
                return new Owned(client.getFairLock(name));
            case "redisson-fenced":
                RFencedLock fenced = client.getFencedLock(name);
                // Its token is what one takes it for.
                return new Owned(fenced) {
                    @Override
                    public void acquire() {
                        fenced.lockAndGetToken();
                    }
                };
            default:
                throw new IllegalArgumentException("no such peer: " + kind);
        }
    }

    @Override
    public void close() {
        client.shutdown(0, 2, TimeUnit.SECONDS);
    }

    private static class Owned implements Lock {
        private final RLock lock;

        Owned(RLock lock) {
            this.lock = lock;
        }

        @Override
        public void acquire() {
            lock.lock();
        }

        @Override
        public void release() {
            lock.unlock();
        }

        @Override
        public boolean held() {
            return lock.isHeldByCurrentThread();
        }
    }
}
