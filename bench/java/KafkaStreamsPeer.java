import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The benchmark's jobs in Kafka Streams' DSL: reads a topic to its end and exits after the commit
 * that covers it. Prints one JSON object: records, and seconds from the first record to that commit.
 * The job "sum_live" is sum_per_key that commits each 100 ms and runs until it is ended. Settings that follow the
 * arguments count instead of those that are here.
 * The job "restore" continues sum_per_key with an empty state folder and exits when its stores are restored:
 * records are rows restored, seconds are from the start of the first restore to the end of the last one.
 */
public final class KafkaStreamsPeer {
  private static final String FOREIGN_KEY_JOIN = "placed";
  /** By job, what follows the name of the topic in that of the one which its events are joined with. */
  private static final Map<String, String> BESIDE =
      Map.of("table_join_sum", "_users", "stream_join_sum", "_clicks", "foreign_key_join", "_pages");
  /** By job, what follows the application's id in the names of topics between its tasks, in the order of the flow. */
  private static final Map<String, List<String>> WITHIN = Map.of(
      "repartition_sum", List.of("-amounts-repartition"),
      "foreign_key_join", List.of(
          "-" + FOREIGN_KEY_JOIN + "-subscription-registration-topic",
          "-" + FOREIGN_KEY_JOIN + "-subscription-response-topic"));

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record Event(long amount) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record PageEvent(String page, long amount) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record User(long factor) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record Click(long weight) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record Price(long price) {}

  public static void main(String[] args) throws Exception {
    if (args.length < 8) {
      System.err.println("usage: KafkaStreamsPeer JOB CLIENT_PROPERTIES IN OUT APPLICATION_ID STATE_DIR THREADS CACHE_BYTES"
          + " [SETTING=VALUE]...");
      System.exit(2);
    }
    String job = args[0], in = args[2], out = args[3], id = args[4];

    Properties client = new Properties();
    try (Reader file = Files.newBufferedReader(Path.of(args[1]))) {
      client.load(file);
    }
    Properties settings = new Properties();
    settings.putAll(client);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[5]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, args[6]);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, args[7]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    boolean isLive = job.equals("sum_live");
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, isLive ? 100 : 1000);
    settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
    // Larger fetches and batches than the defaults, which are a third slower.
    settings.put(StreamsConfig.mainConsumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.mainConsumerPrefix("max.poll.records"), 5000);
    settings.put(StreamsConfig.mainConsumerPrefix("fetch.max.bytes"), 50_000_000);
    settings.put(StreamsConfig.mainConsumerPrefix("max.partition.fetch.bytes"), 4_000_000);
    settings.put(StreamsConfig.producerPrefix("linger.ms"), isLive ? 5 : 50);
    settings.put(StreamsConfig.producerPrefix("batch.size"), 262_144);
    settings.put(StreamsConfig.producerPrefix("compression.type"), "lz4");
    Arrays.stream(args).skip(8).map(other -> other.split("=", 2)).forEach(other -> settings.put(other[0], other[1]));

    LongAdder seen = new LongAdder();
    AtomicLong firstNanos = new AtomicLong();
    StreamsBuilder builder = new StreamsBuilder();
    Runnable count = () -> {
      if (firstNanos.get() == 0) {
        firstNanos.compareAndSet(0, System.nanoTime());
      }
      seen.increment();
    };
    if (job.equals("foreign_key_join")) {
      joinByForeignKey(builder, in, out, count);
    } else {
      addJob(builder, job, in, out, count);
    }
    try (Admin admin = Admin.create(client);
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings)) {
      Map<TopicPartition, Long> ends = endOffsets(admin, in);
      if (BESIDE.containsKey(job)) {
        ends.putAll(endOffsets(admin, in + BESIDE.get(job)));
      }
      streams.setUncaughtExceptionHandler(error -> {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
        return null;
      });
      Restores restores = new Restores();
      streams.setGlobalStateRestoreListener(restores);
      streams.start();
      if (job.equals("restore")) {
        while (restores.ended.sum() < ends.size()) {
          Thread.sleep(5);
        }
        double seconds = (restores.lastNanos.get() - restores.firstNanos.get()) / 1e9;
        System.out.printf("{\"records\": %d, \"seconds\": %.3f}%n", restores.rows.sum(), seconds);
        return;
      }
      if (isLive) {
        Thread.currentThread().join();
      }
      awaitCommit(admin, id, ends);
      for (String topic : WITHIN.getOrDefault(job, List.of())) {  // each is complete once those before are committed
        awaitCommit(admin, id, endOffsets(admin, id + topic));
      }
      double seconds = (System.nanoTime() - firstNanos.get()) / 1e9;
      System.out.printf("{\"records\": %d, \"seconds\": %.3f}%n", seen.sum(), seconds);
    }
  }

  /** The jobs over a stream of amounts. */
  private static void addJob(StreamsBuilder builder, String job, String in, String out, Runnable count) {
    KStream<String, Long> values = job.equals("repartition_sum")
        ? builder.stream(in, Consumed.with(Serdes.String(), json(PageEvent.class)))
            .map((user, event) -> {
              count.run();
              return KeyValue.pair(event.page(), event.amount());
            })
        : builder.stream(in, Consumed.with(Serdes.String(), json(Event.class)))
            .mapValues(event -> {
              count.run();
              return event.amount();
            });
    KGroupedStream<String, Long> amounts =
        values.groupByKey(Grouped.with("amounts", Serdes.String(), Serdes.Long()));
    switch (job) {
      case "sum_per_key", "sum_live", "repartition_sum", "restore" -> amounts
          .reduce(Long::sum, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("sums"))
          .toStream()
          .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      case "window_final" -> amounts
          .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10)))
          .reduce(Long::sum, Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("sums"))
          .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
          .toStream()
          .map((key, sum) -> KeyValue.pair(key.key() + "@" + key.window().start(), sum))
          .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      case "hopping_final" -> amounts
          .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10))
              .advanceBy(Duration.ofSeconds(15)))
          .reduce(Long::sum, Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("sums"))
          .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
          .toStream()
          .map((key, sum) -> KeyValue.pair(key.key() + "@" + key.window().start(), sum))
          .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      case "session_sum" -> amounts
          .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(3), Duration.ofSeconds(10)))
          .reduce(Long::sum, Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sums"))
          .toStream()
          .map((key, sum) -> KeyValue.pair(
              key.key() + "@" + key.window().start() + "@" + key.window().end(), sum))
          .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      case "sliding_sum" -> amounts
          .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(10)))
          .reduce(Long::sum, Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("sums"))
          .toStream()
          .map((key, sum) -> KeyValue.pair(key.key() + "@" + key.window().start(), sum))
          .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      case "stream_join_sum" -> {
        KStream<String, Long> weights = builder
            .stream(in + "_clicks", Consumed.with(Serdes.String(), json(Click.class)))
            .mapValues(click -> {
              count.run();
              return click.weight();
            });
        values
            .join(weights, (amount, weight) -> amount * weight,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(10)),
                StreamJoined.with(Serdes.String(), Serdes.Long(), Serdes.Long()).withStoreName("pairs"))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
            .reduce(Long::sum, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("sums"))
            .toStream()
            .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      }
      case "table_join_sum" -> {
        KTable<String, Long> factors = builder
            .stream(in + "_users", Consumed.with(Serdes.String(), json(User.class)))
            .mapValues(user -> {
              count.run();
              return user.factor();
            })
            .toTable(KafkaStreamsPeer.<Long>stored("users", Serdes.Long()));
        values
            .join(factors, (amount, factor) -> amount * factor,
                Joined.with(Serdes.String(), Serdes.Long(), Serdes.Long()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
            .reduce(Long::sum, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("sums"))
            .toStream()
            .to(out, Produced.with(Serdes.String(), Serdes.Long()));
      }
      default -> throw new IllegalArgumentException("there is no job " + job);
    }
  }

  /** Of each user's newest event the amount times the price of its page. */
  private static void joinByForeignKey(StreamsBuilder builder, String in, String out, Runnable count) {
    KTable<String, Long> prices = builder
        .stream(in + "_pages", Consumed.with(Serdes.String(), json(Price.class)))
        .mapValues(page -> {
          count.run();
          return page.price();
        })
        .toTable(stored("prices", Serdes.Long()));
    builder
        .stream(in, Consumed.with(Serdes.String(), json(PageEvent.class)))
        .peek((user, event) -> count.run())
        .toTable(stored("newest", Serdes.serdeFrom(KafkaStreamsPeer::bytes, KafkaStreamsPeer::pageEvent)))
        .join(prices, PageEvent::page, (event, price) -> event.amount() * price, TableJoined.as(FOREIGN_KEY_JOIN))
        .toStream()
        .to(out, Produced.with(Serdes.String(), Serdes.Long()));
  }

  private static <T> Materialized<String, T, KeyValueStore<Bytes, byte[]>> stored(String name, Serde<T> value) {
    return Materialized.<String, T, KeyValueStore<Bytes, byte[]>>as(name)
        .withKeySerde(Serdes.String())
        .withValueSerde(value);
  }

  /** The amount and the page, shorter than JSON. */
  private static byte[] bytes(String topic, PageEvent event) {
    byte[] page = event.page().getBytes(StandardCharsets.UTF_8);
    return ByteBuffer.allocate(Long.BYTES + page.length).putLong(event.amount()).put(page).array();
  }

  private static PageEvent pageEvent(String topic, byte[] bytes) {
    String page = new String(bytes, Long.BYTES, bytes.length - Long.BYTES, StandardCharsets.UTF_8);
    return new PageEvent(page, ByteBuffer.wrap(bytes).getLong());
  }

  private static final class Restores implements StateRestoreListener {
    final LongAdder rows = new LongAdder(), ended = new LongAdder();
    final AtomicLong firstNanos = new AtomicLong(), lastNanos = new AtomicLong();

    @Override
    public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
      firstNanos.compareAndSet(0, System.nanoTime());
    }

    @Override
    public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

    @Override
    public void onRestoreEnd(TopicPartition partition, String store, long total) {
      rows.add(total);
      lastNanos.accumulateAndGet(System.nanoTime(), Math::max);
      ended.increment();
    }
  }

  private static <T> Serde<T> json(Class<T> type) {
    ObjectReader reader = new ObjectMapper().readerFor(type);
    Deserializer<T> deserializer = (topic, bytes) -> {
      try {
        return reader.readValue(bytes);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    };
    return Serdes.serdeFrom((topic, event) -> { throw new UnsupportedOperationException(); }, deserializer);
  }

  private static Map<TopicPartition, Long> endOffsets(Admin admin, String topic) throws Exception {
    var partitions = admin.describeTopics(new TreeSet<>(List.of(topic))).allTopicNames().get()
        .get(topic).partitions();
    Map<TopicPartition, OffsetSpec> latest = partitions.stream()
        .collect(Collectors.toMap(p -> new TopicPartition(topic, p.partition()), p -> OffsetSpec.latest()));
    Map<TopicPartition, Long> ends = new HashMap<>();
    admin.listOffsets(latest).all().get().forEach((partition, info) -> ends.put(partition, info.offset()));
    return ends;
  }

  private static void awaitCommit(Admin admin, String group, Map<TopicPartition, Long> ends) throws Exception {
    while (!isCommitted(admin, group, ends)) {
      Thread.sleep(20);
    }
  }

  private static boolean isCommitted(Admin admin, String group, Map<TopicPartition, Long> ends) throws Exception {
    Map<TopicPartition, OffsetAndMetadata> committed =
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    return ends.entrySet().stream().allMatch(end -> {
      OffsetAndMetadata at = committed.get(end.getKey());
      return end.getValue() == 0 || (at != null && at.offset() >= end.getValue());
    });
  }
}
