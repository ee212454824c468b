import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;

/** BOOTSTRAP SOURCE SINK GROUP: copies one topic into another within transactions, until it is ended. */
public final class Transformer {
    public static void main(String[] arguments) {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        common.put("request.timeout.ms", "5000");
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", arguments[3]);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "50");
        String bytes = "org.apache.kafka.common.serialization.ByteArray";
        reading.put("key.deserializer", bytes + "Deserializer");
        reading.put("value.deserializer", bytes + "Deserializer");
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", arguments[3]);
        writing.put("key.serializer", bytes + "Serializer");
        writing.put("value.serializer", bytes + "Serializer");
        writing.put("delivery.timeout.ms", "30000");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading)) {
            consumer.subscribe(List.of(arguments[1]));
            while (true) {
                try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(writing)) {
                    producer.initTransactions();
                    System.out.println("ready");
                    while (true) transform(consumer, producer, arguments[2]);
                } catch (ProducerFencedException | FencedInstanceIdException | AuthorizationException fatal) {
                    throw fatal;
                } catch (KafkaException broken) {
                    System.out.println("anew: " + broken);
                    rewind(consumer);
                }
            }
        }
    }

    private static void transform(
            KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer, String sink) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty()) return;
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        try {
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                producer.send(new ProducerRecord<>(sink, record.partition(), record.key(), record.value()));
                TopicPartition place = new TopicPartition(record.topic(), record.partition());
                offsets.put(place, new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            commit(producer);
            System.out.println("committed " + records.count());
        } catch (ProducerFencedException fatal) {
            throw fatal;
        } catch (KafkaException abortable) {
            System.out.println("aborted: " + abortable);
            producer.abortTransaction();
            rewind(consumer);
        }
    }

    private static void commit(KafkaProducer<byte[], byte[]> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException unknown) {
                System.out.println("asks again: " + unknown);
            }
        }
    }

    private static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        committed.forEach((place, offset) -> {
            if (offset == null) consumer.seekToBeginning(List.of(place));
            else consumer.seek(place, offset);
        });
    }
}
