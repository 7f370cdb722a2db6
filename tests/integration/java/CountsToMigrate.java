import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts a topic of users and countries by user, by user and minute (final results go to a topic), and by country,
 * after a repartition. Ends cleanly once the counts by country add up to a number of records.
 */
public final class CountsToMigrate {
  public static void main(String[] args) throws Exception {
    String bootstrap = args[0], in = args[1], out = args[2], id = args[3], stateDir = args[4];
    long records = Long.parseLong(args[5]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, stateDir);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.mainConsumerPrefix("auto.offset.reset"), "earliest");

    StreamsBuilder builder = new StreamsBuilder();
    KStream<String, String> visits = builder.stream(in, Consumed.with(Serdes.String(), Serdes.String()));
    var byUser = visits.groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
    byUser.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("by_user"));
    byUser.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10)))
        .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("by_minute"))
        .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
        .toStream()
        .map((key, count) -> KeyValue.pair(key.key() + "@" + key.window().start(), count))
        .to(out, Produced.with(Serdes.String(), Serdes.Long()));
    visits.groupBy((user, country) -> country, Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("by_country"));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
      return null;
    });
    streams.start();
    while (total(streams) < records) {
      Thread.sleep(50);
    }
    streams.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
  }

  private static long total(KafkaStreams streams) {
    long total = 0;
    try {
      ReadOnlyKeyValueStore<String, Long> store = streams.store(
          StoreQueryParameters.fromNameAndType("by_country", QueryableStoreTypes.keyValueStore()));
      try (var rows = store.all()) {
        while (rows.hasNext()) {
          total += rows.next().value;
        }
      }
    } catch (InvalidStateStoreException starting) {
      return 0;
    }
    return total;
  }
}
