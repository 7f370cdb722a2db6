import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.ReduceFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/** The benchmark's jobs in Flink's DataStream API; sums are updates by key, windows and sessions are final results. */
public final class FlinkDataStreamPeer {
  private static final TypeInformation<Tuple2<String, Long>> PAIR = Types.TUPLE(Types.STRING, Types.LONG);

  @JsonIgnoreProperties(ignoreUnknown = true)
  public record Event(String page, long amount) {}

  public static void main(String[] args) throws Exception {
    FlinkRun run = new FlinkRun(args);
    StreamExecutionEnvironment environment = run.environment();
    KafkaSource<Tuple2<String, Long>> source = KafkaSource.<Tuple2<String, Long>>builder()
        .setProperties(FlinkRun.consumer(run.client))
        .setTopics(run.in)
        .setGroupId(run.out)
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setBounded(OffsetsInitializer.latest())
        .setDeserializer(new Amounts(run.job.equals("repartition_sum")))
        .build();
    WatermarkStrategy<Tuple2<String, Long>> watermarks =
        WatermarkStrategy.<Tuple2<String, Long>>forBoundedOutOfOrderness(Duration.ofSeconds(10));
    DataStream<Tuple2<String, Long>> amounts = environment.fromSource(source, watermarks, run.in, PAIR);
    DataStream<Tuple2<String, Long>> totals = switch (run.job) {
      case "sum_per_key", "repartition_sum" -> amounts
          .transform("sums of a checkpoint", PAIR, new SumsOfCheckpoint())
          .keyBy(pair -> pair.f0)
          .process(new RunningSum());
      case "window_final" -> windows(amounts, TumblingEventTimeWindows.of(Duration.ofMinutes(1)), run.closedByMs);
      case "hopping_final" -> windows(
          amounts, SlidingEventTimeWindows.of(Duration.ofMinutes(1), Duration.ofSeconds(15)), run.closedByMs);
      case "session_sum" -> amounts
          .keyBy(pair -> pair.f0)
          .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(3)))
          .reduce(new Sum(), new Session());
      default -> throw new IllegalArgumentException("there is no job " + run.job);
    };
    totals.sinkTo(KafkaSink.<Tuple2<String, Long>>builder()
        .setKafkaProducerConfig(FlinkRun.producer(run.client))
        .setBootstrapServers(run.client.getProperty("bootstrap.servers"))
        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(run.out)
        .setRecordSerializer(new Totals(run.out))
        .build());
    environment.execute(run.out);
    FlinkRun.report();
  }

  private static DataStream<Tuple2<String, Long>> windows(
      DataStream<Tuple2<String, Long>> amounts, WindowAssigner<Object, TimeWindow> assigner, long closedByMs) {
    KeyedStream<Tuple2<String, Long>, String> keyed = amounts.keyBy(pair -> pair.f0);
    return keyed.window(assigner).reduce(new Sum(), new Closed(closedByMs));
  }

  private static final class Amounts implements KafkaRecordDeserializationSchema<Tuple2<String, Long>> {
    private final boolean isByPage;
    private transient ObjectReader reader;

    Amounts(boolean isByPage) {
      this.isByPage = isByPage;
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, Long>> out)
        throws IOException {
      if (reader == null) {
        reader = new ObjectMapper().readerFor(Event.class);
      }
      Event event = reader.readValue(record.value());
      String key = isByPage ? event.page() : new String(record.key(), StandardCharsets.UTF_8);
      out.collect(Tuple2.of(key, FlinkRun.count(event.amount())));
    }

    @Override
    public TypeInformation<Tuple2<String, Long>> getProducedType() {
      return PAIR;
    }
  }

  /** Sums within a checkpoint before the shuffle, in memory, as Flink's own mini-batches do: state is empty between. */
  private static final class SumsOfCheckpoint extends AbstractStreamOperator<Tuple2<String, Long>>
      implements OneInputStreamOperator<Tuple2<String, Long>, Tuple2<String, Long>>, BoundedOneInput {
    private static final int MOST_KEYS = 50_000;
    private transient Map<String, Long> sums;

    @Override
    public void open() throws Exception {
      super.open();
      sums = new HashMap<>();
    }

    @Override
    public void processElement(StreamRecord<Tuple2<String, Long>> element) {
      sums.merge(element.getValue().f0, element.getValue().f1, Long::sum);
      if (sums.size() >= MOST_KEYS) {
        flush();
      }
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpoint) {
      flush();
    }

    @Override
    public void endInput() {
      flush();
    }

    private void flush() {
      sums.forEach((key, sum) -> output.collect(new StreamRecord<>(Tuple2.of(key, sum))));
      sums.clear();
    }
  }

  private static final class RunningSum
      extends KeyedProcessFunction<String, Tuple2<String, Long>, Tuple2<String, Long>> {
    private transient ValueState<Long> total;

    @Override
    public void open(OpenContext context) {
      total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Types.LONG));
    }

    @Override
    public void processElement(Tuple2<String, Long> pair, Context context, Collector<Tuple2<String, Long>> out)
        throws IOException {
      Long before = total.value();
      long now = before == null ? pair.f1 : before + pair.f1;
      total.update(now);
      out.collect(Tuple2.of(pair.f0, now));
    }
  }

  private static final class Sum implements ReduceFunction<Tuple2<String, Long>> {
    @Override
    public Tuple2<String, Long> reduce(Tuple2<String, Long> one, Tuple2<String, Long> other) {
      return Tuple2.of(one.f0, one.f1 + other.f1);
    }
  }

  private static final class Closed
      extends ProcessWindowFunction<Tuple2<String, Long>, Tuple2<String, Long>, String, TimeWindow> {
    private final long closedByMs;

    Closed(long closedByMs) {
      this.closedByMs = closedByMs;
    }

    @Override
    public void process(
        String user, Context context, Iterable<Tuple2<String, Long>> sums, Collector<Tuple2<String, Long>> out) {
      if (context.window().getEnd() <= closedByMs) {
        out.collect(Tuple2.of(user + "@" + context.window().getStart(), sums.iterator().next().f1));
      }
    }
  }

  private static final class Session
      extends ProcessWindowFunction<Tuple2<String, Long>, Tuple2<String, Long>, String, TimeWindow> {
    @Override
    public void process(
        String user, Context context, Iterable<Tuple2<String, Long>> sums, Collector<Tuple2<String, Long>> out) {
      long end = context.window().getEnd() - 3000;  // the others' sessions end with their last event
      out.collect(Tuple2.of(user + "@" + context.window().getStart() + "@" + end, sums.iterator().next().f1));
    }
  }

  private static final class Totals implements KafkaRecordSerializationSchema<Tuple2<String, Long>> {
    private final String topic;

    Totals(String topic) {
      this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(
        Tuple2<String, Long> pair, KafkaSinkContext context, Long timestamp) {
      byte[] total = ByteBuffer.allocate(Long.BYTES).putLong(pair.f1).array();
      return new ProducerRecord<>(topic, pair.f0.getBytes(StandardCharsets.UTF_8), total);
    }
  }
}
