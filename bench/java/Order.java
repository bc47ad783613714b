import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.List;

/** What the driver was told. */
final class Order {
    private final JsonObject fields;

    Order(String json) {
        fields = JsonParser.parseString(json).getAsJsonObject();
    }

    List<String> urls() {
        List<String> urls = new ArrayList<>();
        fields.getAsJsonArray("urls").forEach(url -> urls.add(url.getAsString()));
        return urls;
    }

    String text(String field) {
        return fields.get(field).getAsString();
    }

    int number(String field) {
        return fields.get(field).getAsInt();
    }

    /** A field that is told in seconds, in microseconds. */
    long seconds(String field) {
        return (long) (fields.get(field).getAsDouble() * 1e6);
    }
}
