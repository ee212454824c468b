import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** BOOTSTRAP TOPIC COUNT: for each line that it is told, commits so many numbers one by one, and leaves one open. */
public final class LeavingOpen {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Properties how = new Properties();
        how.put("bootstrap.servers", arguments[0]);
        how.put("transactional.id", topic);
        how.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        how.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        Scanner told = new Scanner(System.in);
        int number = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(how)) {
            producer.initTransactions();
            producer.beginTransaction();
            while (told.hasNextLine()) {
                told.nextLine();
                for (int left = Integer.parseInt(arguments[2]); left > 0; left--) {
                    producer.commitTransaction();
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, Integer.toString(number++))).get();
                    OffsetAndMetadata place = new OffsetAndMetadata(number);
                    producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), place), new ConsumerGroupMetadata(topic));
                }
                System.out.println(number);
            }
            producer.commitTransaction();
        }
    }
}
