import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's InterProcessMutex, driven by lines of JSON (see ../README.md). One thread does it all: to Curator it is the owner. */
public final class CuratorDriver {
    /** Curator's locks have no ttl of their own: they live as long as the session. */
    private static final int SESSION_MILLIS = 10_000;
    private static final int CONNECT_MILLIS = 15_000;

    private final CuratorFramework client;
    private InterProcessMutex lock;

    private CuratorDriver(CuratorFramework client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        // As in Curator's "getting started": there is no default policy.
        CuratorFramework client = CuratorFrameworkFactory.newClient(
            args[0], SESSION_MILLIS, CONNECT_MILLIS, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected(CONNECT_MILLIS, TimeUnit.MILLISECONDS);
        CuratorDriver driver = new CuratorDriver(client);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String op = "";
        String line;
        while (!op.equals("quit") && (line = lines.readLine()) != null) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            op = request.get("op").getAsString();
            System.out.println(new Gson().toJson(driver.answer(op, request)));
        }
        client.close();
    }

    private JsonObject answer(String op, JsonObject request) {
        String why;
        try {
            why = act(op, request);
        } catch (Exception error) {
            why = error.toString();
        }
        JsonObject said = new JsonObject();
        said.addProperty("ok", why == null);
        if (why != null) {
            said.addProperty("why", why);
        }
        return said;
    }

    /** Does it; answers why it could not be done, if so. */
    private String act(String op, JsonObject request) throws Exception {
        switch (op) {
            case "acquire":
                lock = new InterProcessMutex(client, "/" + request.get("key").getAsString());
                long wait = request.has("wait_ms") ? request.get("wait_ms").getAsLong() : 0;
                return lock.acquire(wait, TimeUnit.MILLISECONDS) ? null : "busy";
            case "held":
                return lock != null && lock.isOwnedByCurrentThread() ? null : "not held";
            case "lock_again":
                lock.acquire();
                return null;
            case "release":
            case "unlock_once":
                lock.release();
                return null;
            case "quit":
                return null;
            default:
                return "no such op: " + op;
        }
    }
}
