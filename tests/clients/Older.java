import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * BOOTSTRAP TOPIC: what applications do, by calls that clients from 0.11 to 3.9 have.
 *
 * It tells what it saw. Before its second half, with the same clients, it waits for a line.
 */
public final class Older {
    private static final int EACH = 50;
    private static final int PATIENCE_MS = 30_000;
    private static String bootstrap;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        try (AdminClient admin = AdminClient.create(how())) {
            List<NewTopic> topics = new ArrayList<>();
            topics.add(new NewTopic(topic, 2, (short) 1));
            topics.add(new NewTopic(topic + "-committed", 1, (short) 1));
            admin.createTopics(topics).all().get();
            List<Member> members = new ArrayList<>();
            for (int number = 0; number < 2; number++) {
                members.add(new Member());
                members.get(number).start();
            }
            int sent = 0;
            for (CompressionType codec : CompressionType.values()) {
                try (KafkaProducer<String, String> producer = producer("compression.type", codec.name)) {
                    sent += send(producer, codec.name);
                }
            }
            say("seen", seen(sent) - sent);
            KafkaProducer<String, String> sender = producer("transactional.id", topic);
            sender.initTransactions();
            transactions(sender);
            say("committed", committed());
            KafkaProducer<String, String> producer = producer("acks", "all");
            sent += send(producer, "before");
            say("waiting", 0);
            if (System.in.read() < 0) {
                throw new IOException("nobody is there");
            }
            sent += send(producer, "after");
            say("seen", seen(sent) - sent);
            transactions(sender);
            say("committed", committed());
            try (KafkaProducer<String, String> other = producer("transactional.id", topic)) {
                other.initTransactions();
                say("fenced", fenced(sender) ? 1 : 0);
            }
            producer.close();
            for (Member each : members) {
                each.leaves = true;
                each.join();
            }
            admin.deleteTopics(Collections.singleton(topic)).all().get();
        }
    }

    private static void say(String what, int number) {
        System.out.println(what + " " + number);
    }

    private static Properties how(String... more) {
        Properties how = new Properties();
        how.put("bootstrap.servers", bootstrap);
        how.put("reconnect.backoff.max.ms", "200");
        for (int at = 0; at < more.length; at += 2) {
            how.put(more[at], more[at + 1]);
        }
        return how;
    }

    private static KafkaProducer<String, String> producer(String name, String value) {
        Properties how = how("enable.idempotence", "true", "acks", "all", "retries", "1000", name, value);
        return new KafkaProducer<>(how, new StringSerializer(), new StringSerializer());
    }

    private static int send(KafkaProducer<String, String> producer, String text)
            throws InterruptedException, ExecutionException {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = 0; number < EACH; number++) {
            sent.add(producer.send(new ProducerRecord<>(topic, number % 2, "key", text + number)));
        }
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
        return sent.size();
    }

    /** Three transactions of two records, the second one aborted; the last offset of the group is the third one's. */
    private static void transactions(KafkaProducer<String, String> sender) throws InterruptedException, ExecutionException {
        TopicPartition of = new TopicPartition(topic, 0);
        for (int number = 0; number < 3; number++) {
            sender.beginTransaction();
            sender.send(new ProducerRecord<>(topic + "-committed", "one"));
            sender.send(new ProducerRecord<>(topic + "-committed", "two")).get();
            sender.sendOffsetsToTransaction(
                    Collections.singletonMap(of, new OffsetAndMetadata(number)), topic + "-of-transactions");
            if (number == 1) {
                sender.abortTransaction();
            } else {
                sender.commitTransaction();
            }
        }
    }

    private static boolean fenced(KafkaProducer<String, String> sender) throws InterruptedException, ExecutionException {
        try {
            transactions(sender);
            return false;
        } catch (ProducerFencedException fenced) {
            return true;
        } catch (ExecutionException | KafkaException failed) { // also by the send after the one that was told
            return failed.getCause() instanceof ProducerFencedException;
        } finally {
            sender.close();
        }
    }

    /** Records that a reader of committed ones finds before the last committed one. */
    private static int committed() {
        Properties how = how("isolation.level", "read_committed");
        try (KafkaConsumer<String, String> reader =
                new KafkaConsumer<>(how, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic + "-committed", 0);
            reader.assign(Collections.singleton(partition));
            reader.seekToBeginning(Collections.singleton(partition));
            long end = reader.endOffsets(Collections.singleton(partition)).get(partition);
            int found = 0;
            while (reader.position(partition) < end) {
                found += reader.poll(100).count();
            }
            return found;
        }
    }

    private static int seen(int wanted) throws InterruptedException {
        for (long left = PATIENCE_MS; left > 0 && Member.SEEN.size() < wanted; left -= 50) {
            Thread.sleep(50);
        }
        return Member.SEEN.size();
    }

    private static final class Member extends Thread {
        static final Set<String> SEEN = Collections.newSetFromMap(new ConcurrentHashMap<>());
        volatile boolean leaves;

        @Override
        public void run() {
            Properties how = how("group.id", topic, "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200");
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(how, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(Collections.singleton(topic));
                while (!leaves) {
                    for (ConsumerRecord<String, String> each : consumer.poll(50)) {
                        SEEN.add(each.partition() + " " + each.offset());
                    }
                }
            }
        }
    }
}
