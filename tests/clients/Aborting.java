import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * BOOTSTRAP TOPIC COUNT: commits numbers one by one, and aborts a transaction at once after each.
 *
 * The producer's thread looks whether records are left to send, and only then for an end that waits to be sent. Where
 * a whole transaction comes in between, its end goes first: a commit of nothing is refused, which is fatal, and a
 * record that was aborted stays and is committed with the next one. So what is committed is flushed before, and what
 * was aborted is seen to be gone.
 */
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
                producer.flush();
                producer.commitTransaction();
                producer.beginTransaction();
                Future<?> aborted = producer.send(new ProducerRecord<>(arguments[1], "aborted"));
                producer.abortTransaction();
                while (!aborted.isDone()) { // this one has nothing to send, and waits until nothing is left
                    producer.beginTransaction();
                    producer.abortTransaction();
                }
            }
        }
    }
}
