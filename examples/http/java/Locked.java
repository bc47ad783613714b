// A lock over HTTP with nothing but the standard library: acquire, renew while working, release.
// TENURE_SERVICE=http://127.0.0.1:7420 java Locked.java orders/42
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.UUID;
import java.util.regex.Pattern;

public class Locked {
    static final long TTL_MS = 10_000;

    /** An answer, and two clocks as they were before its request was sent. */
    record Answer(int status, String body, long nanos, long millis) {
        long number(String field) {
            var found = Pattern.compile("\"" + field + "\":(\\d+)").matcher(body);
            return found.find() ? Long.parseLong(found.group(1)) : 0;
        }

        /** How long the lease may be trusted, by the clock that leaves less: nanoTime may stand still while the machine sleeps. */
        long leftMs() {
            return number("expires_in_ms") - Math.max((System.nanoTime() - nanos) / 1_000_000, System.currentTimeMillis() - millis);
        }
    }

    /** Without an answer it is the one known before: ask again. */
    static Answer post(String path, String body, long withinMs, Answer known) throws InterruptedException {
        var request = HttpRequest.newBuilder(URI.create(System.getenv("TENURE_SERVICE") + path)).timeout(Duration.ofMillis(withinMs))
            .header("content-type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body)).build();
        long nanos = System.nanoTime(), millis = System.currentTimeMillis();
        try {
            var response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            return response.statusCode() == 503 ? known : new Answer(response.statusCode(), response.body(), nanos, millis);
        } catch (java.io.IOException unknown) { return known; }
    }

    public static void main(String[] args) throws InterruptedException {
        var claim = "{\"name\":\"%s\",\"owner\":\"%s\",\"claim\":\"%s\"".formatted(args[0], UUID.randomUUID(), UUID.randomUUID());
        var held = new Answer(202, "", 0, 0);
        for (; held.status == 202; Thread.sleep(100)) // the same claim again keeps its place in the queue
            held = post("/v1/acquire", claim + ",\"ttl_ms\":10000,\"wait_ms\":50000,\"queue\":true}", 60_000, held);
        for (int step = 1; step <= 20; step++) {
            if (held.leftMs() < TTL_MS / 2) // before the first step too: the lease may have been waited for longer than it lasts
                held = post("/v1/renew", claim + ",\"ttl_ms\":10000}", TTL_MS / 6, held);
            if (held.leftMs() < TTL_MS / 10) throw new IllegalStateException("no lease: " + held);
            // What is written to refuses tokens below the highest it has seen.
            System.out.println("step " + step + " under token " + held.number("token"));
            Thread.sleep(TTL_MS / 100);
        }
        post("/v1/release", claim + "}", TTL_MS, held);
    }
}
