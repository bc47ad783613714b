import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/** One library, connected: makes locks. */
interface Peer extends AutoCloseable {
    /** A lock object for one thread, which acquires and releases it as often as it likes. */
    Lock lock(String name);

    @Override
    void close();

    interface Lock {
        /** Waits without limit. */
        void acquire() throws Exception;

        void release() throws Exception;

        /** Whether the calling thread still holds it, as far as the library can tell. */
        boolean held();
    }

    /** The version in use, from the jar itself: pom.xml is the only place that chooses it. */
    static String version(String group, String artifact) throws IOException {
        Properties made = new Properties();
        try (InputStream in = Peer.class.getResourceAsStream("/META-INF/maven/" + group + "/" + artifact + "/pom.properties")) {
            made.load(in);
        }
        return made.getProperty("version");
    }
}
