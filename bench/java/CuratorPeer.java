import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's InterProcessMutex. */
final class CuratorPeer implements Peer {
    private final CuratorFramework client;
    /** The session is over, and every lock of it: the mutex itself would not say so. */
    private volatile boolean lost;

    CuratorPeer(List<String> urls, int ttlMillis) throws InterruptedException {
        String servers = urls.stream().map(url -> url.replaceFirst("^.*://", "")).collect(Collectors.joining(","));
        client = CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs(ttlMillis)
            // As in Curator's "getting started": there is no default.
            .retryPolicy(new ExponentialBackoffRetry(1000, 3))
            .build();
        client.getConnectionStateListenable().addListener((same, state) -> lost |= state == ConnectionState.LOST);
        client.start();
        if (!client.blockUntilConnected(15, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + servers);
        }
    }

    /** One mutex for each thread, as in Curator's examples: threads that share one all wake at every release. */
    @Override
    public Lock lock(String name) {
        InterProcessMutex mutex = new InterProcessMutex(client, "/" + name);
        return new Lock() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }

            @Override
            public boolean held() {
                return !lost && mutex.isOwnedByCurrentThread();
            }
        };
    }

    @Override
    public void close() {
        client.close();
    }
}
