import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** BOOTSTRAP TOPIC COUNT: commits numbers one by one, and aborts a transaction at once after each. */
public final class Aborting {
    public static void main(String[] arguments) {
        Properties how = new Properties();
        how.put("bootstrap.servers", arguments[0]);
        how.put("transactional.id", arguments[1]);
        how.put("linger.ms", "1000"); // what is aborted has not left yet
        how.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        how.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(how)) {
            producer.initTransactions();
            for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(arguments[1], Integer.toString(number)));
                producer.commitTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(arguments[1], "aborted"));
                producer.abortTransaction();
            }
        }
    }
}
