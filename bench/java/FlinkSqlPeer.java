import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.functions.ScalarFunction;

/** The benchmark's jobs in Flink SQL; sums are updates by key, windows and sessions are final results. */
public final class FlinkSqlPeer {
  private static final String BOUNDED = "'scan.bounded.mode' = 'latest-offset', 'key.format' = 'raw', "
      + "'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY')";

  /** Counts records as they are read. */
  public static final class Count extends ScalarFunction {
    public long eval(long amount) {
      return FlinkRun.count(amount);
    }

    @Override
    public boolean isDeterministic() {
      return false;  // so that it is called once for each record
    }
  }

  /** Milliseconds since the epoch, of a bound of a window in UTC. */
  public static final class Millis extends ScalarFunction {
    public long eval(LocalDateTime bound) {
      return bound.toInstant(ZoneOffset.UTC).toEpochMilli();
    }
  }

  /**
   * Whether a window is closed at the end. It depends on the window's total so that the planner leaves the filter behind
   * the windows: one by their ends alone it would put before them, where it needs a row for each window of an event,
   * instead of slices.
   */
  public static final class Closed extends ScalarFunction {
    public boolean eval(LocalDateTime end, long total, long closedByMs) {
      return end.toInstant(ZoneOffset.UTC).toEpochMilli() <= closedByMs;
    }
  }

  public static void main(String[] args) throws Exception {
    FlinkRun run = new FlinkRun(args);
    var tables = StreamTableEnvironment.create(run.environment());
    tables.getConfig().setLocalTimeZone(ZoneOffset.UTC);
    tables.createTemporarySystemFunction("counted", Count.class);
    tables.createTemporarySystemFunction("millis", Millis.class);
    tables.createTemporarySystemFunction("closed", Closed.class);
    tables.executeSql("CREATE TABLE events (`user` STRING, page STRING, amount BIGINT NOT NULL, "
        + "ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, "
        + "WATERMARK FOR ts AS ts - INTERVAL '10' SECOND) " + stream(run, run.in));
    boolean isAppended = run.job.endsWith("_final") || run.job.equals("session_sum");
    tables.executeSql("CREATE TABLE totals (`key` STRING, total BIGINT"
        + (isAppended ? ") " : ", PRIMARY KEY (`key`) NOT ENFORCED) ")
        + with(isAppended ? "kafka" : "upsert-kafka", run.out, FlinkRun.producer(run.client))
        + ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '" + run.out + "', "
        + (isAppended ? "'key.fields' = 'key', " : "")
        + "'key.format' = 'raw', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY')");
    switch (run.job) {
      case "table_join_sum" -> tables.executeSql("CREATE TABLE users (`user` STRING, factor BIGINT NOT NULL, "
          + "weight AS counted(factor), since TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, "
          + "WATERMARK FOR since AS since, PRIMARY KEY (`user`) NOT ENFORCED) " + table(run, run.in + "_users"));
      case "stream_join_sum" -> tables.executeSql("CREATE TABLE clicks (`user` STRING, weight BIGINT NOT NULL, "
          + "ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, "
          + "WATERMARK FOR ts AS ts - INTERVAL '10' SECOND) " + stream(run, run.in + "_clicks"));
      case "foreign_key_join" -> {
        tables.executeSql("CREATE TABLE newest (`user` STRING, page STRING, amount BIGINT NOT NULL, "
            + "PRIMARY KEY (`user`) NOT ENFORCED) " + table(run, run.in));
        tables.executeSql("CREATE TABLE pages (page STRING, price BIGINT NOT NULL, "
            + "PRIMARY KEY (page) NOT ENFORCED) " + table(run, run.in + "_pages"));
      }
      default -> {}
    }
    tables.executeSql("CREATE TEMPORARY VIEW seen AS SELECT `user`, page, counted(amount) AS amount, ts FROM events");
    tables.executeSql("INSERT INTO totals " + query(run)).await();
    FlinkRun.report();
  }

  private static String query(FlinkRun run) {
    return switch (run.job) {
      case "sum_per_key" -> "SELECT `user`, SUM(amount) FROM seen GROUP BY `user`";
      case "repartition_sum" -> "SELECT page, SUM(amount) FROM seen GROUP BY page";
      case "window_final" -> "SELECT `key`, total FROM (" + windows("TUMBLE(DATA => TABLE seen, TIMECOL => DESCRIPTOR(ts), "
          + "SIZE => INTERVAL '1' MINUTE)") + ")" + closed(run);
      case "hopping_final", "hopping_60_final" -> "SELECT `key`, total FROM ("
          + windows("HOP(DATA => TABLE seen, TIMECOL => DESCRIPTOR(ts), SLIDE => INTERVAL '"
              + (run.job.equals("hopping_final") ? 15 : 1) + "' SECOND, SIZE => INTERVAL '1' MINUTE)")
          + ")" + closed(run);
      case "session_sum" -> "SELECT CONCAT(`key`, '@', CAST(millis(window_end) - 3000 AS STRING)), total FROM ("
          + windows("SESSION(DATA => TABLE seen PARTITION BY `user`, TIMECOL => DESCRIPTOR(ts), "
              + "GAP => INTERVAL '3' SECOND)") + ")";  // the others' sessions end with their last event
      case "table_join_sum" -> "SELECT seen.`user`, SUM(amount * weight) FROM seen "
          + "JOIN users FOR SYSTEM_TIME AS OF seen.ts ON seen.`user` = users.`user` GROUP BY seen.`user`";
      case "stream_join_sum" -> "SELECT seen.`user`, SUM(amount * weight) FROM seen JOIN "
          + "(SELECT `user`, counted(weight) AS weight, ts FROM clicks) AS clicked ON seen.`user` = clicked.`user` AND "
          + "clicked.ts BETWEEN seen.ts - INTERVAL '5' SECOND AND seen.ts + INTERVAL '5' SECOND GROUP BY seen.`user`";
      case "foreign_key_join" -> "SELECT placed.`user`, amount * price FROM "
          + "(SELECT `user`, page, counted(amount) AS amount FROM newest) AS placed JOIN "
          + "(SELECT page, counted(price) AS price FROM pages) AS priced ON placed.page = priced.page";
      default -> throw new IllegalArgumentException("there is no job " + run.job);
    };
  }

  private static String closed(FlinkRun run) {
    return " WHERE closed(window_end, total, CAST(" + run.closedByMs + " AS BIGINT))";
  }

  private static String windows(String of) {
    return "SELECT CONCAT(`user`, '@', CAST(millis(window_start) AS STRING)) AS `key`, total, window_end FROM ("
        + "SELECT `user`, window_start, window_end, SUM(amount) AS total FROM TABLE(" + of + ") "
        + "GROUP BY `user`, window_start, window_end)";
  }

  private static String stream(FlinkRun run, String topic) {
    return with("kafka", topic, FlinkRun.consumer(run.client)) + ", 'scan.startup.mode' = 'earliest-offset', "
        + "'key.fields' = 'user', " + BOUNDED;
  }

  private static String table(FlinkRun run, String topic) {
    return with("upsert-kafka", topic, FlinkRun.consumer(run.client)) + ", " + BOUNDED;
  }

  private static String with(String connector, String topic, Properties properties) {
    String others = properties.stringPropertyNames().stream().sorted()
        .map(name -> ", 'properties." + name + "' = '" + properties.getProperty(name).replace("'", "''") + "'")
        .collect(Collectors.joining());
    return "WITH ('connector' = '" + connector + "', 'topic' = '" + topic + "'" + others;
  }
}
