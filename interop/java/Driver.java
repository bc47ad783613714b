import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's RLock, driven by lines of JSON (see ../README.md). One thread does it all: to Redisson it is the owner. */
public final class Driver {
    /** What Redisson takes for "no lease of mine: let the watchdog keep it". */
    private static final long KEPT_BY_WATCHDOG = -1;

    private final RedissonClient client;
    private RLock lock;
    /** What it was acquired with, for taking it again. */
    private long lease = KEPT_BY_WATCHDOG;

    private Driver(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]).setConnectionMinimumIdleSize(1).setConnectionPoolSize(4);
        RedissonClient client = Redisson.create(config);
        Driver driver = new Driver(client);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String op = "";
        String line;
        while (!op.equals("quit") && (line = lines.readLine()) != null) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            op = request.get("op").getAsString();
            System.out.println(new Gson().toJson(driver.answer(op, request)));
        }
        client.shutdown(0, 2, TimeUnit.SECONDS);
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
    private String act(String op, JsonObject request) throws InterruptedException {
        switch (op) {
            case "acquire":
                lock = client.getLock(request.get("key").getAsString());
                lease = request.has("ttl_ms") ? request.get("ttl_ms").getAsLong() : KEPT_BY_WATCHDOG;
                return acquire(request) ? null : "busy";
            case "extend":
                return "an RLock has no extend: its watchdog does that";
            case "held":
                return lock != null && lock.isHeldByCurrentThread() ? null : "not held";
            case "lock_again":
                return lock.tryLock(0, lease, TimeUnit.MILLISECONDS) ? null : "busy";
            case "release":
            case "unlock_once":
                lock.unlock();
                return null;
            case "quit":
                return null;
            default:
                return "no such op: " + op;
        }
    }

    private boolean acquire(JsonObject request) throws InterruptedException {
        if (request.has("wait_ms")) {
            return lock.tryLock(request.get("wait_ms").getAsLong(), lease, TimeUnit.MILLISECONDS);
        }
        lock.lock(lease, TimeUnit.MILLISECONDS);
        return true;
    }
}
