import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Prints where Java's producer puts keys: arguments are the number of partitions and the keys in hexadecimal digits. */
class PartitionOfKeys {
    public static void main(String[] arguments) {
        int partitions = Integer.parseInt(arguments[0]);
        for (int index = 1; index < arguments.length; index++) {
            byte[] key = HexFormat.of().parseHex(arguments[index]);
            System.out.println(BuiltInPartitioner.partitionForKey(key, partitions));
        }
    }
}
