import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * One run of Flink in a mini cluster of this process, in streaming mode: what both of its peers share. The source ends
 * where the topic ended when the job began, so the job ends with the checkpoint that covers it, its transactions
 * committed. Prints one JSON object: records, and seconds from the first record to that end.
 */
final class FlinkRun {
  static final String USAGE = "JOB CLIENT_PROPERTIES IN OUT CLOSED_BY_MS KEY=VALUE...";
  private static final LongAdder SEEN = new LongAdder();
  private static final AtomicLong FIRST_NANOS = new AtomicLong();

  final String job, in, out;
  final Properties client = new Properties();
  /**
   * The greatest end of a window that is closed by the last record. A source that ends moves the watermark to the end
   * of time, so Flink would also show the windows that are still open.
   */
  final long closedByMs;
  private final Configuration settings = new Configuration();

  FlinkRun(String[] args) throws Exception {
    if (args.length < 5) {
      System.err.println("usage: " + USAGE);
      System.exit(2);
    }
    job = args[0];
    in = args[2];
    out = args[3];
    closedByMs = Long.parseLong(args[4]);
    try (Reader file = Files.newBufferedReader(Path.of(args[1]))) {
      client.load(file);
    }
    for (int i = 5; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      settings.setString(pair[0], pair[1]);
    }
  }

  /** Counts a record that was read; returns its amount. */
  static long count(long amount) {
    if (FIRST_NANOS.get() == 0) {
      FIRST_NANOS.compareAndSet(0, System.nanoTime());
    }
    SEEN.increment();
    return amount;
  }

  StreamExecutionEnvironment environment() {
    return StreamExecutionEnvironment.createLocalEnvironment(settings);
  }

  /** The settings of transactional producers to the bench's topics. */
  static Properties producer(Properties client) {
    Properties all = new Properties();
    all.putAll(client);
    all.setProperty("transaction.timeout.ms", "600000");  // Flink's own default is above what brokers allow
    all.setProperty("linger.ms", "50");
    all.setProperty("batch.size", "262144");
    all.setProperty("compression.type", "lz4");
    return all;
  }

  /** The settings of consumers: larger fetches than the defaults. */
  static Properties consumer(Properties client) {
    Properties all = new Properties();
    all.putAll(client);
    all.setProperty("max.poll.records", "5000");
    all.setProperty("fetch.max.bytes", "50000000");
    all.setProperty("max.partition.fetch.bytes", "4000000");
    return all;
  }

  /** Prints the result once the job has ended. */
  static void report() {
    double seconds = (System.nanoTime() - FIRST_NANOS.get()) / 1e9;
    System.out.printf("{\"records\": %d, \"seconds\": %.3f}%n", SEEN.sum(), seconds);
    System.out.flush();
    Runtime.getRuntime().halt(0);  // the mini cluster's own end takes a second
  }
}
