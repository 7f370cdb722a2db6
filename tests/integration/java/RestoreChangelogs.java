import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.ArrayList;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Restores the stores of {@link StateToMigrate} from the changelogs that Weir wrote, as Kafka Streams does at a start,
 * reads more records, and prints the results: tests/pipelines/migrate has both in weir_changelogs.txt.
 *
 * <p>Run like {@link PrintChangelogs}: java -cp "OUT:JARS/*" RestoreChangelogs weir_changelogs.txt
 */
public final class RestoreChangelogs {
  private static final String[][] RECORDS = {
    {"clicks", "ann", "more", "18000"}, {"buys", "ann", "ring", "18500"}, {"users", "ann", "au", "7000"},
    {"users", "bob", "be", "7100"}, {"users", "eve", null, "7200"}, {"orders", "o2", null, "7300"},
    {"tiers", "bob", "steel", "16500"}, {"clicks", "bob", "old", "16800"}, {"clicks", "ann", "peek", "14500"},
    {"clicks", "eve", "home", "40000"},
  };

  public static void main(String[] args) throws Exception {
    String folder = Files.createTempDirectory("restore-changelogs").toString();
    Properties settings = StateToMigrate.settings("app", "none:1", folder);
    settings.put("processing.guarantee", "at_least_once");
    try (var driver = new TopologyTestDriver(StateToMigrate.topology(""), settings)) {
      for (var changelog : changelogs(Path.of(args[0])).entrySet()) {
        restore(driver, changelog.getKey(), changelog.getValue());
      }
      for (String[] record : RECORDS) {
        var topic = driver.createInputTopic(record[0], new StringSerializer(), new StringSerializer());
        topic.pipeInput(record[1], record[2], Long.parseLong(record[3]));
      }
      var out = driver.createOutputTopic("out", new ByteArrayDeserializer(), new ByteArrayDeserializer());
      while (!out.isEmpty()) {
        TestRecord<byte[], byte[]> record = out.readRecord();
        System.out.println("> " + record.timestamp() + " " + new String(record.key(), StandardCharsets.UTF_8) + " = "
            + new String(record.value(), StandardCharsets.UTF_8));
      }
    }
  }

  private static Map<String, List<ConsumerRecord<byte[], byte[]>>> changelogs(Path file) throws Exception {
    Map<String, List<ConsumerRecord<byte[], byte[]>>> found = new LinkedHashMap<>();
    for (String line : Files.readAllLines(file)) {
      if (line.startsWith("#") || line.startsWith(">")) {
        continue;
      }
      String[] parts = line.split(" ");
      var records = found.computeIfAbsent(parts[0], store -> new ArrayList<>());
      RecordHeaders headers = new RecordHeaders();
      if (parts.length > 4) {
        String[] header = parts[4].split("=");
        headers.add(header[0], HexFormat.of().parseHex(header[1]));
      }
      records.add(new ConsumerRecord<>("app-" + parts[0] + "-changelog", 0, records.size(),
          parts[1].equals("null") ? 0 : Long.parseLong(parts[1]), TimestampType.CREATE_TIME, -1, -1, bytes(parts[2]),
          bytes(parts[3]), headers, Optional.empty()));
    }
    return found;
  }

  /** What a StoreChangelogReader does with a batch; Kafka Streams has no public way to it. */
  private static void restore(TopologyTestDriver driver, String store, List<ConsumerRecord<byte[], byte[]>> records)
      throws Exception {
    var taskField = TopologyTestDriver.class.getDeclaredField("task");
    taskField.setAccessible(true);
    Object task = taskField.get(driver);
    var managerField = task.getClass().getSuperclass().getDeclaredField("stateMgr");
    managerField.setAccessible(true);
    Object manager = managerField.get(task);
    Method metadata = method(manager, "storeMetadata");
    Object of = metadata.invoke(manager, new TopicPartition("app-" + store + "-changelog", 0));
    method(manager, "restore").invoke(manager, of, records, OptionalLong.of(0));
  }

  private static Method method(Object object, String name) {
    for (Method method : object.getClass().getDeclaredMethods()) {
      if (method.getName().equals(name)) {
        method.setAccessible(true);
        return method;
      }
    }
    throw new IllegalStateException("no method " + name);
  }

  private static byte[] bytes(String hex) {
    return hex.equals("-") ? null : HexFormat.of().parseHex(hex);
  }
}
