import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * One store of every kind that Kafka Streams keeps: windows, sessions, versions, a foreign-key join, two suppressions
 * and a join of streams. Reads the topics PREFIX-clicks, -buys, -tiers, -orders and -users, writes to PREFIX-out under
 * keys that begin with the operator's name, and ends cleanly once its group has reached the ends of its topics.
 */
public final class StateToMigrate {
  static Topology topology(String prefix) {
    Serde<String> text = Serdes.String();
    StreamsBuilder builder = new StreamsBuilder();
    KStream<String, String> clicks = builder.stream(prefix + "clicks", Consumed.with(text, text));
    KStream<String, String> buys = builder.stream(prefix + "buys", Consumed.with(text, text));
    var byUser = clicks.groupByKey(Grouped.with(text, text));
    var out = Produced.with(text, text);

    byUser.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(1)))
        .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("visits"))
        .toStream()
        .map((key, count) -> KeyValue.pair(
            "visits " + key.key() + " " + key.window().start() + " " + key.window().end(), String.valueOf(count)))
        .to(prefix + "out", out);

    byUser.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(2)))
        .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows"))
        .filter((key, count) -> count > 0)
        .suppress(Suppressed.<org.apache.kafka.streams.kstream.Windowed<String>>untilWindowCloses(
            BufferConfig.unbounded()).withName("finals"))
        .toStream()
        .map((key, count) -> KeyValue.pair(
            "finals " + key.key() + " " + key.window().start(), String.valueOf(count)))
        .to(prefix + "out", out);

    byUser.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("totals"))
        .suppress(Suppressed.<String>untilTimeLimit(Duration.ofSeconds(20), BufferConfig.maxRecords(1000))
            .withName("slow"))
        .toStream()
        .map((key, count) -> KeyValue.pair("slow " + key, String.valueOf(count)))
        .to(prefix + "out", out);

    KTable<String, String> tiers = builder.table(
        prefix + "tiers", Consumed.with(text, text),
        Materialized.as(Stores.persistentVersionedKeyValueStore("tiers", Duration.ofSeconds(30))));
    clicks.join(tiers, (page, tier) -> page + "+" + tier, Joined.with(text, text, text))
        .map((key, value) -> KeyValue.pair("tiered " + key, value))
        .to(prefix + "out", out);

    KTable<String, String> orders = builder.table(
        prefix + "orders", Consumed.with(text, text),
        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("orders"));
    KTable<String, String> users = builder.table(
        prefix + "users", Consumed.with(text, text),
        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("users"));
    orders.join(users, order -> order, (order, user) -> order + "+" + user, TableJoined.as("buyers"))
        .toStream()
        .map((key, value) -> KeyValue.pair("buyers " + key, value == null ? "gone" : value))
        .to(prefix + "out", out);

    clicks.leftJoin(
            buys, (page, item) -> page + "+" + item,
            JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(3), Duration.ofSeconds(1)),
            StreamJoined.with(text, text, text).withName("near").withStoreName("near"))
        .map((key, value) -> KeyValue.pair("near " + key, value))
        .to(prefix + "out", out);
    return builder.build();
  }

  static Properties settings(String id, String bootstrap, String stateDir) {
    Properties settings = new Properties();
    settings.putAll(Map.of(
        StreamsConfig.APPLICATION_ID_CONFIG, id,
        StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
        StreamsConfig.STATE_DIR_CONFIG, stateDir,
        StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
        StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
        StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
        StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
        // The left join looks for records without a match at every record, not once a second of wall clock.
        "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L,
        StreamsConfig.mainConsumerPrefix("auto.offset.reset"), "earliest",
        StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 5));
    return settings;
  }

  public static void main(String[] args) throws Exception {
    String bootstrap = args[0], prefix = args[1], id = args[2], stateDir = args[3];
    KafkaStreams streams = new KafkaStreams(topology(prefix), settings(id, bootstrap, stateDir));
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
      return null;
    });
    streams.start();
    System.in.read();  // the caller closes standard input once the group has read everything
    streams.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
  }
}
