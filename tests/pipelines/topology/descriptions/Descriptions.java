import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowBytesStoreSupplier;

/**
 * The programs of test_describe.py in Kafka Streams. Writes what it prints for each to NAME.txt in the folder given:
 * java -cp 'JARS/*' Descriptions.java FOLDER, with the jars that python -m weir.infra.jars streams fetches.
 */
public class Descriptions {
    private static final JoinWindows NEAR = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofSeconds(1));
    private static Path folder;

    public static void main(final String[] arguments) throws IOException {
        folder = Path.of(arguments[0]);
        write("word_count", builder ->
            stream(builder, "text").filter((key, word) -> true).groupBy((key, word) -> word)
                .count(Materialized.as("counts-store")).toStream().to("counts"));
        write("several_topics", builder ->
            builder.<String, String>stream(List.of("clicks", "views")).filter((key, value) -> true).to("all"));
        write("merged", builder ->
            stream(builder, "clicks").merge(stream(builder, "views")).filter((key, value) -> true).to("all"));
        write("shared_repartition", builder -> {
            final KTable<String, String> users = table(builder, "users");
            final KStream<String, String> moved = stream(builder, "clicks").selectKey((key, value) -> value);
            moved.join(users, (value, other) -> value).to("known");
            moved.leftJoin(users, (value, other) -> value).to("all");
        });
        write("repartitions_in_order", builder -> {
            final KGroupedStream<String, String> grouped =
                stream(builder, "clicks").groupBy((key, value) -> value);
            grouped.count(Materialized.as("zebra"));
            grouped.count(Materialized.as("ant"));
        });
        write("explicit_repartition", builder ->
            stream(builder, "clicks").repartition(Repartitioned.as("spread")).to("all"));
        write("global_table_first", builder -> {
            final GlobalKTable<String, String> products = global(builder, "products");
            stream(builder, "sales").join(products, (key, value) -> value, (value, other) -> value).to("out");
        });
        write("global_table_between", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks");
            clicks.join(global(builder, "pages"), (key, value) -> value, (value, other) -> value).to("titled");
            clicks.groupBy((key, value) -> value).count(Materialized.as("counts")).toStream().to("counted");
        });
        write("stream_join", builder -> {
            final KStream<String, String> left = stream(builder, "left"), right = stream(builder, "right");
            left.leftJoin(right, (value, other) -> value, NEAR, StreamJoined.as("met")).to("out");
        });
        write("stream_join_of_new_keys", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks").selectKey((key, value) -> value);
            final KStream<String, String> orders = stream(builder, "orders").selectKey((key, value) -> value);
            clicks.join(orders, (value, other) -> value, NEAR, StreamJoined.as("near")).to("out");
        });
        write("named_stream_join", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks").selectKey((key, value) -> value);
            final KStream<String, String> orders = stream(builder, "orders").selectKey((key, value) -> value);
            clicks.outerJoin(orders, (value, other) -> value, NEAR,
                StreamJoined.<String, String, String>as("near").withName("bought")).to("out");
        });
        write("stream_join_of_two_stores", builder -> {
            final KStream<String, String> left = stream(builder, "left"), right = stream(builder, "right");
            left.leftJoin(right, (value, other) -> value, NEAR,
                StreamJoined.with(joinStore("shown"), joinStore("clicked"))).to("out");
        });
        write("stream_table_join", builder -> {
            final KStream<String, String> orders = stream(builder, "orders");
            final KTable<String, String> customers = table(builder, "customers");
            orders.selectKey((key, value) -> value)
                .join(customers, (value, other) -> value, Joined.as("billed")).to("out");
        });
        write("table_join", builder -> {
            final KTable<String, String> names = table(builder, "names"), cities = table(builder, "cities");
            names.leftJoin(cities.mapValues(value -> value), (value, other) -> value).toStream().to("out");
        });
        write("kept_tables", builder -> {
            final KTable<String, String> names = table(builder, "names"), cities = table(builder, "cities");
            final KTable<String, String> known = names.filter((key, value) -> true, Materialized.as("known"));
            final KTable<String, String> rest = names.filterNot((key, value) -> true, Materialized.as("rest"));
            final KTable<String, String> places = cities.mapValues(value -> value, Materialized.as("places"));
            known.leftJoin(places, (value, other) -> value).toStream().to("out");
            rest.toStream().to("others");
        });
        write("windowed_table_join", builder -> {
            final KTable<Windowed<String>, Long> seen = minutes(builder, "views"), clicked = minutes(builder, "clicks");
            seen.leftJoin(clicked.mapValues(value -> value), (value, other) -> value).toStream().to("out");
        });
        write("suppressed_table_join", builder -> {
            final KTable<String, String> names = table(builder, "names"), cities = table(builder, "cities");
            names.suppress(Suppressed.untilTimeLimit(Duration.ofSeconds(1), Suppressed.BufferConfig.unbounded()))
                .join(cities, (value, other) -> value).toStream().to("out");
        });
        write("foreign_key_join", builder -> {
            final KTable<String, String> orders = table(builder, "orders"), customers = table(builder, "customers");
            orders.<String, String, String>join(customers, value -> value, (value, other) -> value,
                Materialized.as("KTABLE-FK-JOIN-OUTPUT-0000000016-store")).toStream().to("out");
        });
        write("named_foreign_key_join", builder -> {
            final KTable<String, String> orders = table(builder, "orders"), customers = table(builder, "customers");
            orders.<String, String, String>leftJoin(
                customers, value -> value, (value, other) -> value, TableJoined.as("priced"));
        });
        write("table_of_a_new_key", builder ->
            stream(builder, "clicks").selectKey((key, value) -> value)
                .toTable(Materialized.as("newest")).toStream().to("out"));
        write("grouped_table", builder ->
            table(builder, "towns").groupBy((key, value) -> KeyValue.pair(value, value))
                .count(Materialized.as("counts")).toStream().to("out"));
        write("cogroup", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks"), purchases = stream(builder, "purchases");
            purchases.groupBy((key, value) -> value)
                .<Long>cogroup((key, value, aggregate) -> aggregate)
                .cogroup(clicks.groupByKey(), (key, value, aggregate) -> aggregate)
                .aggregate(() -> 0L, Materialized.as("visits")).toStream().to("out");
        });
        write("suppressed", builder ->
            stream(builder, "clicks").groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1))).count(Materialized.as("hourly"))
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream().to("out"));
        write("branches", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks");
            clicks.split(Named.as("by-")).branch((key, value) -> true, Branched.withConsumer(it -> it.to("one"), "a"))
                .defaultBranch(Branched.withConsumer(it -> it.peek((key, value) -> { }).to("two"), "b"));
        });
        write("many_children", builder -> {
            final KStream<String, String> shops =
                builder.stream(List.of("web", "app", "kiosk", "phone", "car"));
            final KTable<String, String> newest = shops.toTable(Materialized.as("newest"));
            final KTable<String, String> users = table(builder, "users"), towns = table(builder, "towns");
            final KTable<String, String> placed = users.outerJoin(towns, (value, other) -> value);
            final KTable<String, String> joined = newest.leftJoin(placed, (value, other) -> value);
            shops.join(joined, (value, other) -> value).to("one");
            shops.filter((key, value) -> true).mapValues(value -> value).peek((key, value) -> { }).to("two");
            shops.to("three");
            shops.groupByKey().count(Materialized.as("counts"));
        });
        write("balanced_children", builder -> {
            final KStream<String, String> clicks = stream(builder, "clicks");
            clicks.toTable(Materialized.as("newest")).mapValues(value -> value);
            clicks.groupBy((key, value) -> value).count(Materialized.as("counts"));
            clicks.foreach((key, value) -> { });
        });
        write("nodes_of_both_kinds", builder -> {
            builder.addStateStore(store("seen"));
            stream(builder, "clicks").filter((key, value) -> true).process(Nothing::new, Named.as("count"), "seen")
                .to("counted");
        }, topology -> topology
            .addSource("pages", "pages")
            .addProcessor("learn", Nothing::new, "pages")
            .addProcessor("both", Nothing::new, "KSTREAM-FILTER-0000000001", "learn")
            .addStateStore(store("own"), "both")
            .connectProcessorAndStateStores("learn", "seen")
            .addSink("out", "out", "count", "both"));
        write("named_sources", builder -> { }, topology -> topology
            .addSource("zebra", "one").addSource("ant", "two").addSource("Bee", "three")
            .addProcessor("first", Nothing::new, "zebra").addProcessor("second", Nothing::new, "ant")
            .addSink("out", "out", "first").addSink("other", "other", "second").addSink("third", "third", "Bee"));
        write("named_and_numbered_sources", builder -> stream(builder, "clicks").to("all"), topology -> topology
            .addSource("Ant", "one").addSink("ant-out", "one_out", "Ant")
            .addSource("Zebra", "two").addSink("zebra-out", "two_out", "Zebra"));
    }

    private static class Nothing implements Processor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) {
        }
    }

    private static StoreBuilder<KeyValueStore<String, String>> store(final String name) {
        return Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(name), Serdes.String(), Serdes.String());
    }

    private static WindowBytesStoreSupplier joinStore(final String name) {
        return Stores.persistentWindowStore(name, Duration.ofSeconds(2), Duration.ofSeconds(2), true);
    }

    private static KTable<Windowed<String>, Long> minutes(final StreamsBuilder builder, final String topic) {
        return stream(builder, topic).groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1))).count(Materialized.as(topic));
    }

    private static KStream<String, String> stream(final StreamsBuilder builder, final String topic) {
        return builder.stream(topic);
    }

    private static KTable<String, String> table(final StreamsBuilder builder, final String topic) {
        return builder.table(topic, Materialized.as(topic));
    }

    private static GlobalKTable<String, String> global(final StreamsBuilder builder, final String topic) {
        return builder.globalTable(topic, Materialized.as(topic));
    }

    private static void write(final String name, final Consumer<StreamsBuilder> program) {
        write(name, program, topology -> { });
    }

    private static void write(
        final String name, final Consumer<StreamsBuilder> program, final Consumer<Topology> nodes
    ) {
        final StreamsBuilder builder = new StreamsBuilder();
        program.accept(builder);
        final Topology topology = builder.build();
        nodes.accept(topology);
        try {
            Files.writeString(folder.resolve(name + ".txt"), topology.describe().toString());
        } catch (final IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
