import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Prints what the stores of {@link StateToMigrate} write to their changelogs, as tests/pipelines/migrate has it in
 * kafka_streams_changelogs.txt: store, timestamp, key, value, headers, in hexadecimal.
 *
 * <p>Run with the jars of org.apache.kafka:kafka-streams-test-utils:4.3.1 in JARS:
 * javac -cp "JARS/*" -d OUT StateToMigrate.java PrintChangelogs.java && java -cp "OUT:JARS/*" PrintChangelogs
 */
public final class PrintChangelogs {
  private static final String[][] RECORDS = {
    {"users", "ann", "nz", "1000"}, {"users", "bob", "at", "1500"},
    {"orders", "o1", "ann", "2000"}, {"orders", "o2", "bob", "2100"}, {"orders", "o3", "eve", "2200"},
    {"tiers", "ann", "gold", "1000"}, {"tiers", "ann", "silver", "9000"}, {"tiers", "ann", "bronze", "5000"},
    {"tiers", "bob", "gold", "2000"}, {"tiers", "bob", null, "8000"},
    {"clicks", "ann", "home", "1000"}, {"clicks", "ann", "cart", "4000"}, {"clicks", "bob", "home", "6000"},
    {"buys", "ann", "hat", "3000"}, {"clicks", "ann", "pay", "11500"}, {"clicks", "bob", "cart", "8000"},
    {"orders", "o2", "ann", "3000"}, {"orders", "o1", null, "3500"}, {"users", "bob", null, "4000"},
    {"buys", "bob", "tie", "12000"},
  };

  public static void main(String[] args) throws Exception {
    String folder = Files.createTempDirectory("print-changelogs").toString();
    Properties settings = StateToMigrate.settings("app", "none:1", folder);
    settings.put("processing.guarantee", "at_least_once");
    try (var driver = new TopologyTestDriver(StateToMigrate.topology(""), settings)) {
      for (String[] record : RECORDS) {
        var topic = driver.createInputTopic(record[0], new StringSerializer(), new StringSerializer());
        topic.pipeInput(record[1], record[2], Long.parseLong(record[3]));
      }
      for (String store : List.of("visits", "windows", "finals-store", "totals", "slow-store", "tiers", "orders", "users",
          "buyers-subscription-store", "near-this-join-store", "near-outer-other-join-store",
          "near-left-shared-join-store")) {
        TestOutputTopic<byte[], byte[]> changelog = driver.createOutputTopic(
            "app-" + store + "-changelog", new ByteArrayDeserializer(), new ByteArrayDeserializer());
        while (!changelog.isEmpty()) {
          TestRecord<byte[], byte[]> record = changelog.readRecord();
          StringBuilder headers = new StringBuilder();
          record.headers().forEach(
              header -> headers.append(header.key()).append("=").append(hex(header.value())).append(" "));
          System.out.println(String.join(" ", store, String.valueOf(record.timestamp()), hex(record.key()),
              hex(record.value()), headers.toString().strip()).strip());
        }
      }
      var out = driver.createOutputTopic("out", new ByteArrayDeserializer(), new ByteArrayDeserializer());
      while (!out.isEmpty()) {
        TestRecord<byte[], byte[]> record = out.readRecord();
        System.out.println("> " + record.timestamp() + " " + new String(record.key(), StandardCharsets.UTF_8) + " = "
            + new String(record.value(), StandardCharsets.UTF_8));
      }
    }
  }

  private static String hex(byte[] bytes) {
    return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
  }
}
